// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ragged ids as an object array of rows.
//
// There may be many short rows, so a row that is an array costs a few loads: no
// new reference to anything but itself, and its dtype is looked at only if it
// is not that of the row before.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/raw_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte {
namespace {

namespace py = pybind11;

class RowReader {
 public:
  RowReader(FeatureReader& reader, NumberKind kind)
      : reader_(reader), kind_(kind) {}

  std::vector<StridedRun> Read(const py::array& rows) {
    const auto& fields = Fields(rows);
    const int64_t num_rows = fields.dimensions[0];
    const auto row = [&fields](int64_t r) {
      return *reinterpret_cast<PyObject* const*>(fields.data +
                                                 r * fields.strides[0]);
    };
    std::vector<StridedRun> runs(num_rows);
    for (int64_t r = 0; r < num_rows; ++r) {
      runs[r] = ReadRow(r, row(r));
    }
    return runs;
  }

 private:
  StridedRun ReadRow(int64_t r, py::handle object) {
    if (!object) object = Py_None;  // NumPy's own reading of a null.
    if (!IsNumpyArray(object)) {
      return ReadRow(r, reader_.ReadArray(What(), object), object);
    }
    reader_.Keep(py::reinterpret_borrow<py::object>(object));
    return ReadRow(r, object, object);
  }

  // `array` is what NumPy made of `object`.
  StridedRun ReadRow(int64_t r, py::handle array, py::handle object) {
    const auto& fields = Fields(array);
    if (fields.nd != 1) {
      reader_.ThrowTypeError("row ", r, " of its ", What(),
                             " must be a 1-D array or a list of numbers, got ",
                             py::repr(object).cast<std::string>(), ".");
    }
    const int64_t size = fields.dimensions[0];
    // Of no numbers the type does not matter: numpy.array([]) is float64.
    if (size == 0) return {};
    if (fields.descr != descr_) {
      ReadType(py::reinterpret_borrow<py::array>(array));
    }
    const int64_t stride = fields.strides[0];
    if (!type_ || stride != static_cast<int32_t>(stride)) {
      return ReadUnusualRow(py::reinterpret_borrow<py::array>(array));
    }
    return {.data = reinterpret_cast<const std::byte*>(fields.data),
            .size = size,
            .stride = static_cast<int32_t>(stride),
            .type = *type_};
  }

  // Checks the array's type, and remembers it unless NumPy has to convert it.
  void ReadType(const py::array& array) {
    const StridedArray numbers = reader_.ReadNumbers(kind_, array);
    type_ = ElementTypeOf(array.dtype());
    if (type_) common_type_.Add(numbers.type.dtype);
    if (kind_ == NumberKind::kIds && !common_type_.Get()) {
      reader_.ThrowTypeError(
          "the rows of its ids are of signed and of 64-bit unsigned integers, "
          "which no type has in common. Convert them, for example with "
          "row.astype(np.int64).");
    }
    descr_ = Fields(array).descr;
  }

  // A row that is converted or copied first.
  StridedRun ReadUnusualRow(const py::array& array) {
    const auto contiguous = py::array::ensure(array, py::array::c_style);
    reader_.Keep(contiguous);
    const StridedArray numbers = reader_.ReadNumbers(kind_, contiguous);
    return {.data = numbers.data,
            .size = numbers.size(),
            .stride = static_cast<int32_t>(numbers.strides[0]),
            .type = numbers.type};
  }

  std::string_view What() const {
    return kind_ == NumberKind::kIds ? "ids" : "weights";
  }

  FeatureReader& reader_;
  const NumberKind kind_;
  // Of the last row, which stays alive.
  PyObject* descr_ = nullptr;
  std::optional<ElementType> type_;
  CommonIdType common_type_;
};

}  // namespace

RawBatch ReadRows(FeatureReader& reader, py::handle ids_object,
                  py::handle weights_object) {
  const auto ids = py::reinterpret_borrow<py::array>(ids_object);
  RawBatch batch = {.feature_name = reader.name(),
                    .ids = RowReader(reader, NumberKind::kIds).Read(ids),
                    .weights = std::nullopt,
                    .samples = RunsAreSamples{}};
  if (weights_object.is_none()) return batch;
  const py::array weights = reader.ReadArray("weights", weights_object);
  if (weights.dtype().kind() != 'O' || weights.ndim() != 1) {
    reader.ThrowValueError(
        "ids are ragged, so weights must be an object array of rows too, got "
        "shape ",
        ShapeOf(weights), " of dtype ", DtypeOf(weights), ".");
  }
  const auto& id_rows = std::get<std::vector<StridedRun>>(batch.ids);
  auto weight_rows = RowReader(reader, NumberKind::kWeights).Read(weights);
  if (weight_rows.size() != id_rows.size()) {
    reader.ThrowValueError("ids have ", id_rows.size(), " rows and weights ",
                           weight_rows.size(), ".");
  }
  for (size_t r = 0; r < id_rows.size(); ++r) {
    if (weight_rows[r].size != id_rows[r].size) {
      reader.ThrowValueError("row ", r, " has ", id_rows[r].size, " ids and ",
                             weight_rows[r].size,
                             " weights. Pass one weight per id.");
    }
  }
  batch.weights = std::move(weight_rows);
  return batch;
}

}  // namespace jte
