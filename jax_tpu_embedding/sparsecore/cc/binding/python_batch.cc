// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/python_batch.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

convert::RawBatch ReadDense(FeatureReader& reader, const py::array& ids,
                            py::handle weights_object) {
  const convert::StridedArray numbers =
      reader.ReadNumbers(NumberKind::kIds, ids);
  convert::RawBatch batch = {.feature_name = reader.name(),
                             .ids = numbers,
                             .weights = std::nullopt,
                             .samples = convert::RowsOfArray{}};
  if (weights_object.is_none()) return batch;
  const py::array weights = reader.ReadArray("weights", weights_object);
  if (!std::ranges::equal(std::span(weights.shape(), weights.ndim()),
                          std::span(ids.shape(), ids.ndim()))) {
    reader.ThrowValueError("ids have shape ", ShapeOf(ids), " and weights ",
                           ShapeOf(weights), ". They must be the same.");
  }
  batch.weights = reader.ReadNumbers(NumberKind::kWeights, weights);
  return batch;
}

convert::RawBatch ReadArrayOrRows(FeatureReader& reader, const py::array& ids,
                                  py::handle weights) {
  const bool ragged = ids.dtype().kind() == 'O';
  if (ragged ? !IsColumn(ids) : ids.ndim() != 1 && ids.ndim() != 2) {
    reader.ThrowValueError(
        "ids must have shape [samples, valency] or [samples], or be an object "
        "array [samples] or [samples, 1] of rows, got shape ",
        ShapeOf(ids), " of dtype ", DtypeOf(ids), ".");
  }
  return ragged ? ReadRows(reader, ids, weights)
                : ReadDense(reader, ids, weights);
}

convert::StridedArray ReadRowSplits(FeatureReader& reader, py::handle object,
                                    int64_t num_ids) {
  const convert::StridedArray splits =
      reader.ReadFlatIntegers("row_splits", object);
  // Whether they ascend is checked with those of all forms, in PlanStack.
  if (splits.size() == 0 || IntegerAt(splits, 0) != 0 ||
      IntegerAt(splits, splits.size() - 1) != num_ids) {
    reader.ThrowValueError(
        "its row_splits must begin with 0 and end with the number of ids, ",
        num_ids, ", got ", py::repr(object).cast<std::string>(), ".");
  }
  reader.CheckNumSamples(splits.size() - 1);
  return splits;
}

py::tuple PairOf(FeatureReader& reader, py::handle object) {
  const auto pair = py::reinterpret_borrow<py::tuple>(object);
  if (pair.size() == 2) return pair;
  reader.ThrowTypeError("a tuple must be (values, row_splits), got ",
                        pair.size(), " elements.");
}

convert::RawBatch ReadSplits(FeatureReader& reader, py::handle ids_object,
                             py::handle weights_object) {
  const py::tuple pair = PairOf(reader, ids_object);
  const convert::StridedArray ids = reader.ReadFlat(NumberKind::kIds, pair[0]);
  const convert::StridedArray splits =
      ReadRowSplits(reader, pair[1], ids.size());
  convert::RawBatch batch = {.feature_name = reader.name(),
                             .ids = ids,
                             .weights = std::nullopt,
                             .samples = convert::RowSplits{splits}};
  if (weights_object.is_none()) return batch;
  const bool has_splits = PyTuple_Check(weights_object.ptr());
  const convert::StridedArray weights = reader.ReadFlat(
      NumberKind::kWeights,
      has_splits ? py::object(PairOf(reader, weights_object)[0])
                 : py::reinterpret_borrow<py::object>(weights_object));
  reader.CheckNumWeights(ids.size(), weights.size());
  if (has_splits) {
    const convert::StridedArray weight_splits = ReadRowSplits(
        reader, PairOf(reader, weights_object)[1], weights.size());
    if (weight_splits.size() != splits.size() ||
        FirstDifferentRow(splits, weight_splits) >= 0) {
      reader.ThrowValueError(
          "the row_splits of its weights are not those of its ids. Pass one "
          "weight per id.");
    }
  }
  batch.weights = weights;
  return batch;
}

}  // namespace

convert::RawBatch ReadPythonBatch(FeatureReader& reader, py::handle ids,
                                  py::handle weights) {
  if (IsPlainNumpyArray(ids)) {
    const auto array = py::reinterpret_borrow<py::array>(ids);
    reader.Keep(array);
    return ReadArrayOrRows(reader, array, weights);
  }
  // First, because a sparse tensor may be a named tuple.
  if (py::hasattr(ids, "dense_shape")) {
    const auto part = [&reader, ids](const char* name) {
      return reader.ReadAttribute(ids, name, "sparse tensor");
    };
    return ReadSparseTensor(reader, part("indices"), part("values"),
                            part("dense_shape"), weights);
  }
  if (PyTuple_Check(ids.ptr())) return ReadSplits(reader, ids, weights);
  if (py::hasattr(ids, "tocoo")) return ReadSparseMatrix(reader, ids, weights);
  if (IsArrow(ids)) return ReadArrow(reader, ids, weights);
  return ReadArrayOrRows(reader, reader.ReadArray("ids", ids), weights);
}

}  // namespace jte::binding
