// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/python_batch.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte {
namespace {

namespace py = pybind11;

// Contiguous, aligned, in the machine's byte order: what a span can view.
template <typename T>
using NativeArray = py::array_t<T, py::array::c_style | py::array::forcecast |
                                       py::detail::npy_api::NPY_ARRAY_ALIGNED_>;

template <typename T>
std::span<const T> View(const NativeArray<T>& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

std::string ShapeOf(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

std::string DtypeOf(const py::array& array) {
  return py::str(array.dtype()).cast<std::string>();
}

bool IsInteger(const py::array& array) {
  const char kind = array.dtype().kind();
  return kind == 'i' || kind == 'u';
}

// bfloat16 and its kin call themselves 'V'; NumPy refuses other void types.
bool IsReal(const py::array& array) {
  const char kind = array.dtype().kind();
  return IsInteger(array) || kind == 'f' || kind == 'V';
}

// Whether int32 has room for all numbers of the array's type.
bool FitsInt32(const py::array& array) {
  return array.itemsize() < 4 ||
         (array.itemsize() == 4 && array.dtype().kind() == 'i');
}

// One feature, with its name for messages.
class BatchReader {
 public:
  explicit BatchReader(const std::string& feature_name)
      : feature_name_(feature_name) {}

  PythonBatch Read(py::handle ids_object, py::handle weights_object) {
    const auto ids = py::reinterpret_borrow<py::array>(AsArray(ids_object));
    const bool ragged = ids.dtype().kind() == 'O';
    if (ids.ndim() != 1 && (ragged || ids.ndim() != 2)) {
      throw py::value_error(Message(
          "ids must have shape [samples, valency] or [samples], or be an "
          "object array [samples] of rows, got shape ",
          ShapeOf(ids), " of dtype ", DtypeOf(ids), "."));
    }
    if (ragged) {
      ReadRaggedIds(ids);
    } else {
      ReadDenseIds(ids);
    }
    if (!weights_object.is_none()) {
      const py::array weights = AsArray(weights_object);
      if (ragged) {
        ReadRaggedWeights(weights);
      } else {
        ReadDenseWeights(weights, ids);
      }
    }
    return std::move(result_);
  }

 private:
  template <typename... Parts>
  std::string Message(const Parts&... parts) const {
    return StrCat("Feature '", feature_name_, "': ", parts...);
  }

  static py::array AsArray(py::handle object) {
    return py::array(py::reinterpret_borrow<py::object>(object));
  }

  void CheckIdType(const py::array& ids) const {
    if (IsInteger(ids)) return;
    throw py::type_error(
        Message("ids must be integers, got dtype ", DtypeOf(ids),
                ". Convert them, for example with ids.astype(np.int32)."));
  }

  void CheckWeightType(const py::array& weights) const {
    if (IsReal(weights)) return;
    throw py::type_error(Message("weights must be real numbers, got dtype ",
                                 DtypeOf(weights),
                                 ". Convert them, for example with "
                                 "weights.astype(np.float32)."));
  }

  // Keeps `array` alive for the view that it returns.
  template <typename T>
  std::span<const T> Keep(NativeArray<T> array) {
    const std::span<const T> view = View(array);
    result_.arrays.push_back(std::move(array));
    return view;
  }

  void ReadDenseIds(const py::array& ids) {
    CheckIdType(ids);
    if (FitsInt32(ids)) {
      result_.batch.ids = Keep(NativeArray<int32_t>(ids));
    } else {
      result_.batch.ids = Keep(NativeArray<int64_t>(ids));
    }
    result_.batch.num_samples = ids.shape(0);
    result_.batch.valency = ids.ndim() == 2 ? ids.shape(1) : 1;
  }

  void ReadDenseWeights(const py::array& weights, const py::array& ids) {
    CheckWeightType(weights);
    if (!std::ranges::equal(std::span(weights.shape(), weights.ndim()),
                            std::span(ids.shape(), ids.ndim()))) {
      throw py::value_error(Message("ids have shape ", ShapeOf(ids),
                                    " and weights ", ShapeOf(weights),
                                    ". They must be the same."));
    }
    result_.batch.weights = Keep(NativeArray<float>(weights));
  }

  // The rows of an object array. A row without elements may be of any type:
  // numpy.array([]) is float64.
  std::vector<py::array> ReadRows(
      std::string_view what, const py::array& object_array,
      void (BatchReader::*check_type)(const py::array&) const) const {
    std::vector<py::array> rows;
    rows.reserve(object_array.size());
    const auto* item = static_cast<const char*>(object_array.data());
    for (py::ssize_t r = 0; r < object_array.shape(0); ++r) {
      const py::handle object = *reinterpret_cast<PyObject* const*>(item);
      item += object_array.strides(0);
      py::array row = AsArray(object);
      if (row.ndim() != 1) {
        throw py::type_error(
            Message("row ", r, " of its ", what,
                    " must be a 1-D array or a list of numbers, got ",
                    py::repr(object).cast<std::string>(), "."));
      }
      if (row.size() > 0) (this->*check_type)(row);
      rows.push_back(std::move(row));
    }
    return rows;
  }

  // All rows in one array.
  template <typename T>
  NativeArray<T> Concatenate(const std::vector<py::array>& rows) const {
    NativeArray<T> flat(result_.row_splits[rows.size()]);
    T* out = flat.mutable_data();
    for (const py::array& row : rows) {
      // Conversion costs more than a copy: avoid it for the usual row.
      if (py::isinstance<py::array_t<T>>(row) &&
          row.strides(0) == py::ssize_t{sizeof(T)}) {
        out = std::copy_n(static_cast<const T*>(row.data()), row.size(), out);
      } else if (row.size() > 0) {
        out = std::ranges::copy(View(NativeArray<T>(row)), out).out;
      }
    }
    return flat;
  }

  void ReadRaggedIds(const py::array& ids) {
    const auto rows = ReadRows("ids", ids, &BatchReader::CheckIdType);
    result_.row_splits =
        std::make_unique_for_overwrite<int64_t[]>(rows.size() + 1);
    result_.row_splits[0] = 0;
    bool fits_int32 = true;
    for (size_t r = 0; r < rows.size(); ++r) {
      result_.row_splits[r + 1] = result_.row_splits[r] + rows[r].size();
      fits_int32 &= rows[r].size() == 0 || FitsInt32(rows[r]);
    }
    if (fits_int32) {
      result_.batch.ids = Keep(Concatenate<int32_t>(rows));
    } else {
      result_.batch.ids = Keep(Concatenate<int64_t>(rows));
    }
    result_.batch.num_samples = std::ssize(rows);
    result_.batch.row_splits = {result_.row_splits.get(), rows.size() + 1};
  }

  void ReadRaggedWeights(const py::array& weights) {
    if (weights.dtype().kind() != 'O' || weights.ndim() != 1) {
      throw py::value_error(
          Message("ids are ragged, so weights must be an object array of rows "
                  "too, got shape ",
                  ShapeOf(weights), " of dtype ", DtypeOf(weights), "."));
    }
    const auto rows =
        ReadRows("weights", weights, &BatchReader::CheckWeightType);
    const auto splits = result_.batch.row_splits;
    if (std::ssize(rows) != result_.batch.num_samples) {
      throw py::value_error(Message("ids have ", result_.batch.num_samples,
                                    " rows and weights ", rows.size(), "."));
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].size() != splits[r + 1] - splits[r]) {
        throw py::value_error(
            Message("row ", r, " has ", splits[r + 1] - splits[r], " ids and ",
                    rows[r].size(), " weights. Pass one weight per id."));
      }
    }
    result_.batch.weights = Keep(Concatenate<float>(rows));
  }

  const std::string& feature_name_;
  PythonBatch result_;
};

}  // namespace

PythonBatch ReadPythonBatch(const std::string& feature_name, py::handle ids,
                            py::handle weights) {
  return BatchReader(feature_name).Read(ids, weights);
}

}  // namespace jte
