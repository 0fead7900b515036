// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ids as entries with coordinates: sparse tensors, and the matrices of
// scipy.sparse. Both are known by their attributes, so that neither TensorFlow
// nor SciPy is imported.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

constexpr std::string_view kMatrix = "sparse matrix";

// The sample of each entry, from an [entries, 2] array.
convert::StridedArray ReadIndices(FeatureReader& reader, py::handle object,
                                  int64_t num_entries) {
  const py::array indices = reader.ReadArray("indices", object);
  // TensorFlow and NumPy give nothing the shape (0,) at times.
  const bool is_empty = indices.size() == 0 && num_entries == 0;
  if (!is_empty && (indices.ndim() != 2 || indices.shape(1) != 2 ||
                    indices.shape(0) != num_entries)) {
    reader.ThrowValueError(
        "its indices must have shape (", num_entries,
        ", 2), sample and position of each value, got shape ", ShapeOf(indices),
        ".");
  }
  if (is_empty) return {.type = {.dtype = convert::DType::kInt64}};
  convert::StridedArray samples = reader.ReadIntegers("indices", indices);
  samples.shape[1] = 1;
  return samples;
}

int64_t ReadNumSamples(FeatureReader& reader, py::handle shape_object) {
  const py::array shape = reader.ReadArray("dense_shape", shape_object);
  if (shape.ndim() != 1 || shape.size() == 0) {
    reader.ThrowValueError(
        "its dense_shape must be the numbers of samples and of positions, got ",
        py::repr(shape).cast<std::string>(), ".");
  }
  const int64_t num_samples =
      IntegerAt(reader.ReadIntegers("dense_shape", shape), 0);
  reader.CheckNumSamples(num_samples);
  return num_samples;
}

// One number per entry: a flat array, or a sparse tensor of the same indices.
convert::StridedArray ReadSparseWeights(FeatureReader& reader,
                                        py::handle weights,
                                        py::handle indices) {
  if (!py::hasattr(weights, "dense_shape")) {
    return reader.ReadFlat(NumberKind::kWeights, weights);
  }
  const py::object weight_indices =
      reader.ReadAttribute(weights, "indices", "sparse tensor of weights");
  const auto array_equal = py::module_::import("numpy").attr("array_equal");
  if (!weight_indices.is(indices) &&
      !array_equal(weight_indices, indices).cast<bool>()) {
    reader.ThrowValueError(
        "the indices of its weights are not those of its ids. Pass one weight "
        "per id, in the same order.");
  }
  return reader.ReadFlat(
      NumberKind::kWeights,
      reader.ReadAttribute(weights, "values", "sparse tensor of weights"));
}

// The number of samples of a matrix.
int64_t ReadNumRows(FeatureReader& reader, py::handle matrix) {
  const py::object shape = reader.ReadAttribute(matrix, "shape", kMatrix);
  if (!PyTuple_Check(shape.ptr()) || py::len(shape) != 2) {
    reader.ThrowValueError(
        "a sparse matrix must have shape [samples, vocabulary_size], got ",
        py::repr(shape).cast<std::string>(), ".");
  }
  py::detail::make_caster<int64_t> num_rows;
  if (!num_rows.load(py::reinterpret_borrow<py::tuple>(shape)[0], true)) {
    reader.ThrowTypeError("the shape of its sparse matrix must be integers, ",
                          "got ", py::repr(shape).cast<std::string>(), ".");
  }
  return py::detail::cast_op<int64_t>(num_rows);
}

// A part of the numbers of a flat array.
convert::StridedArray First(convert::StridedArray array, int64_t size) {
  array.shape[0] = size;
  return array;
}

}  // namespace

convert::RawBatch ReadSparseTensor(FeatureReader& reader, py::handle indices,
                                   py::handle values, py::handle dense_shape,
                                   py::handle weights) {
  const convert::StridedArray ids = reader.ReadFlat(NumberKind::kIds, values);
  convert::RawBatch batch = {
      .feature_name = reader.name(),
      .ids = ids,
      .weights = std::nullopt,
      .samples = convert::SampleIndices{
          .samples = ReadIndices(reader, indices, ids.size()),
          .num_samples = ReadNumSamples(reader, dense_shape)}};
  if (!weights.is_none()) {
    const convert::StridedArray numbers =
        ReadSparseWeights(reader, weights, indices);
    reader.CheckNumWeights(ids.size(), numbers.size());
    batch.weights = numbers;
  }
  return batch;
}

convert::RawBatch ReadSparseMatrix(FeatureReader& reader, py::handle object,
                                   py::handle weights) {
  if (!weights.is_none()) {
    reader.ThrowValueError(
        "it is a sparse matrix, whose values are the weights of its ids, and "
        "has weights too. Pass None as its weights.");
  }
  const int64_t num_samples = ReadNumRows(reader, object);
  reader.CheckNumSamples(num_samples);
  const auto part = [&reader](py::handle matrix, const char* name) {
    return reader.ReadAttribute(matrix, name, kMatrix);
  };
  if (part(object, "format").equal(py::str("csr"))) {
    const convert::StridedArray ids =
        reader.ReadFlat(NumberKind::kIds, part(object, "indices"));
    const convert::StridedArray values =
        reader.ReadFlat(NumberKind::kWeights, part(object, "data"));
    const convert::StridedArray splits =
        reader.ReadFlatIntegers("indptr", part(object, "indptr"));
    if (splits.size() - 1 != num_samples) {
      reader.ThrowValueError("its shape has ", num_samples,
                             " samples, and its indptr ", splits.size(),
                             " numbers, expected ", num_samples + 1,
                             ". Check it with check_format().");
    }
    const int64_t num_ids = IntegerAt(splits, num_samples);
    // Matrices may have more memory than they use.
    if (num_ids < 0 || num_ids > ids.size() || num_ids > values.size()) {
      reader.ThrowValueError("its indptr ends at ", num_ids, " and it has ",
                             ids.size(), " indices and ", values.size(),
                             " values. Check it with check_format().");
    }
    return {.feature_name = reader.name(),
            .ids = First(ids, num_ids),
            .weights = First(values, num_ids),
            .samples = convert::RowSplits{splits}};
  }
  // Other formats keep what they have of each sample in this one.
  const py::object coo = part(object, "tocoo")();
  const convert::StridedArray ids =
      reader.ReadFlat(NumberKind::kIds, part(coo, "col"));
  const convert::StridedArray values =
      reader.ReadFlat(NumberKind::kWeights, part(coo, "data"));
  const convert::StridedArray samples =
      reader.ReadFlatIntegers("row", part(coo, "row"));
  if (ids.size() != samples.size()) {
    reader.ThrowValueError("its row and col have ", samples.size(), " and ",
                           ids.size(), " elements.");
  }
  reader.CheckNumWeights(ids.size(), values.size());
  return {.feature_name = reader.name(),
          .ids = ids,
          .weights = values,
          .samples = convert::SampleIndices{.samples = samples,
                                            .num_samples = num_samples}};
}

}  // namespace jte::binding
