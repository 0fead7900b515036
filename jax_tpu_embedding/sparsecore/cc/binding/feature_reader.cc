// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

namespace py = pybind11;

namespace {

bool IsMaskedArray(py::handle object) {
  if (IsPlainNumpyArray(object) || !IsNumpyArray(object)) return false;
  return py::isinstance(object,
                        py::module_::import("numpy.ma").attr("MaskedArray"));
}

bool IsString(const py::dtype& dtype) {
  return std::string_view("USaT").contains(dtype.kind());
}

}  // namespace

py::object FeatureReader::ReadAttribute(py::handle object, const char* name,
                                        std::string_view kind) const {
  try {
    return object.attr(name);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_AttributeError)) throw;
    ThrowTypeError("its ", kind, " of type ",
                   py::type::of(object).attr("__name__").cast<std::string>(),
                   " has no '", name, "'. Pass a whole ", kind, ".");
  }
}

py::array FeatureReader::ReadArray(std::string_view what, py::handle object) {
  if (IsMaskedArray(object)) {
    ThrowValueError("its ", what,
                    " are a masked array, and what is masked has "
                    "no meaning here. Fill it, for example ids with "
                    "ids.filled(-1) and out_of_range_ids='drop', or weights "
                    "with weights.filled(0).");
  }
  try {
    py::array array(py::reinterpret_borrow<py::object>(object));
    Keep(array);
    return array;
  } catch (py::error_already_set& error) {
    py::raise_from(
        error, PyExc_ValueError,
        Message("its ", what, " cannot be read as an array. See the cause.")
            .c_str());
    throw py::error_already_set();
  }
}

convert::StridedArray FeatureReader::ReadIntegers(std::string_view what,
                                                  const py::array& array) {
  const auto type = ElementTypeOf(array.dtype());
  if (IsString(array.dtype())) {
    ThrowTypeError(what, " must be integers, got strings of dtype ",
                   DtypeOf(array),
                   ". Look them up in a vocabulary, or hash them.");
  }
  if (!type || !convert::IsInteger(type->dtype)) {
    ThrowTypeError(what, " must be integers, got dtype ", DtypeOf(array),
                   ". Convert them, for example with ", what,
                   ".astype(np.int32).");
  }
  return Describe(array, *type);
}

convert::StridedArray FeatureReader::ReadNumbers(NumberKind kind,
                                                 const py::array& array) {
  if (kind == NumberKind::kIds) return ReadIntegers("ids", array);
  if (const auto type = ElementTypeOf(array.dtype())) {
    return Describe(array, *type);
  }
  const char numpy_kind = array.dtype().kind();
  if (numpy_kind == 'b') {  // 0 and 1
    return Describe(array, {.dtype = convert::DType::kUint8});
  }
  if (numpy_kind == 'f' || numpy_kind == 'V') {
    // NumPy knows how to convert types that are rare, but not all of them.
    if (auto converted = py::array_t<float>::ensure(array)) {
      Keep(converted);
      return Describe(converted, {.dtype = convert::DType::kFloat32});
    }
    PyErr_Clear();
  }
  ThrowTypeError("weights must be real numbers, got dtype ", DtypeOf(array),
                 ". Convert them, for example with "
                 "weights.astype(np.float32).");
}

convert::StridedArray FeatureReader::ReadFlat(NumberKind kind,
                                              py::handle object) {
  const std::string_view what = kind == NumberKind::kIds ? "ids" : "weights";
  const py::array array = ReadArray(what, object);
  if (array.ndim() != 1) {
    ThrowValueError("its ", what, " must have one dimension, got shape ",
                    ShapeOf(array), ".");
  }
  return ReadNumbers(kind, array);
}

convert::StridedArray FeatureReader::ReadFlatIntegers(std::string_view what,
                                                      py::handle object) {
  const py::array array = ReadArray(what, object);
  if (array.ndim() != 1) {
    ThrowValueError("its ", what, " must have one dimension, got shape ",
                    ShapeOf(array), ".");
  }
  return ReadIntegers(what, array);
}

void FeatureReader::CheckNumWeights(int64_t num_ids,
                                    int64_t num_weights) const {
  if (num_ids == num_weights) return;
  ThrowValueError("has ", num_ids, " ids and ", num_weights,
                  " weights. Pass one weight per id.");
}

void FeatureReader::CheckNumSamples(int64_t num_samples) const {
  if (num_samples >= 0 && num_samples <= max_num_samples_) return;
  ThrowValueError("has ", num_samples, " samples, outside of [0, ",
                  max_num_samples_,
                  "], which is what the devices of this process can take. Use "
                  "smaller batches or more devices.");
}

int64_t IntegerAt(const convert::StridedArray& array, int64_t i) {
  int64_t number = 0;
  convert::Convert(array, i, i + 1, &number);
  return number;
}

int64_t FirstDifferentRow(const convert::StridedArray& splits,
                          const convert::StridedArray& other_splits) {
  constexpr int64_t kBlock = 512;
  int64_t block[kBlock + 1];
  int64_t other_block[kBlock + 1];
  const int64_t num_rows = splits.size() - 1;
  for (int64_t begin = 0; begin < num_rows; begin += kBlock) {
    const int64_t size = std::min(kBlock, num_rows - begin);
    convert::Convert(splits, begin, begin + size + 1, block);
    convert::Convert(other_splits, begin, begin + size + 1, other_block);
    for (int64_t i = 0; i < size; ++i) {
      // Modulo 2^64, as nobody has looked whether they ascend.
      const auto length = [i](const int64_t* from) {
        return static_cast<uint64_t>(from[i + 1]) -
               static_cast<uint64_t>(from[i]);
      };
      if (length(block) != length(other_block)) {
        return begin + i;
      }
    }
  }
  return -1;
}

}  // namespace jte::binding
