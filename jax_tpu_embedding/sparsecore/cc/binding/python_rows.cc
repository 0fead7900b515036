// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ragged ids as an object array of rows.
//
// There may be many short rows, so a row that is an array costs a few loads.
// Its dtype is looked at only if it is not that of the row before. What keeps
// its numbers alive gets a reference, and rows that are cut from one array,
// which is how many come about, get one together. The row's object, and where
// that says that its shape is, are asked for some rows ahead.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/listed_numbers.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

// The elements of an object array that IsColumn.
class Objects {
 public:
  explicit Objects(const py::array& array)
      : data_(Fields(array).data),
        size_(Fields(array).dimensions[0]),
        stride_(Fields(array).strides[0]) {}

  int64_t size() const { return size_; }
  PyObject* operator[](int64_t i) const {
    return *reinterpret_cast<PyObject* const*>(data_ + i * stride_);
  }

  // For a loop that is at element i: begins to load what it needs of those that
  // come after it.
  void PrefetchAfter(int64_t i) const {
    // Two steps of a chain of loads, each with time enough for one.
    constexpr int64_t kAhead = 32;
    if (i + 2 * kAhead >= size_) return;
    // An object of 80 bytes may lie in two cache lines.
    const auto* const object =
        reinterpret_cast<const char*>((*this)[i + 2 * kAhead]);
    __builtin_prefetch(object);
    __builtin_prefetch(object + 64);
    PyObject* const next = (*this)[i + kAhead];
    if (next != nullptr && IsPlainNumpyArray(next)) {
      __builtin_prefetch(Fields(next).dimensions);
    }
  }

 private:
  const char* data_;
  int64_t size_;
  int64_t stride_;
};

class RowReader {
 public:
  RowReader(FeatureReader& reader, NumberKind kind)
      : reader_(reader), kind_(kind) {}

  ListedNumbers Read(const py::array& array) {
    const Objects rows(array);
    reader_.CheckNumSamples(rows.size());
    numbers_.Expect(rows.size(), rows.size());
    reader_.ExpectToKeep(rows.size() + 1);
    for (int64_t r = 0; r < rows.size(); ++r) {
      rows.PrefetchAfter(r);
      // NumPy's own reading of a null is None.
      PyObject* const row = rows[r] != nullptr ? rows[r] : Py_None;
      if (IsPlainNumpyArray(row)) {
        KeepOwner(row);
        Add(r, row, row);
      } else {
        // What it runs may put another object in the place of this one.
        const auto held = py::reinterpret_borrow<py::object>(row);
        Add(r, reader_.ReadArray(What(), row), held);
      }
    }
    reader_.Keep(numbers_.memory());
    return std::move(numbers_);
  }

 private:
  // Keeps what a plain array's numbers belong to: itself, or the array that it
  // is a view of.
  void KeepOwner(PyObject* row) {
    const auto& fields = Fields(row);
    const bool is_view =
        fields.base != nullptr &&
        (fields.flags & py::detail::npy_api::NPY_ARRAY_OWNDATA_) == 0;
    PyObject* const owner = is_view ? fields.base : row;
    if (owner == last_owner_) return;
    last_owner_ = owner;
    reader_.Keep(py::reinterpret_borrow<py::object>(owner));
  }

  // `array` is what NumPy made of `object`.
  [[gnu::always_inline]] void Add(int64_t r, py::handle array,
                                  py::handle object) {
    const auto& fields = Fields(array);
    if (fields.nd != 1) ThrowNotFlat(r, object);
    const int64_t size = fields.dimensions[0];
    if (size > convert::kMaxIds) ThrowTooLong(r, size);
    numbers_.AddList(size);
    // An empty row may have any type: numpy.array([]) is float64.
    if (size == 0) return;
    if (fields.descr != descr_) {
      AddOfOtherType(py::reinterpret_borrow<py::array>(array));
      return;
    }
    numbers_.AddRun({.data = reinterpret_cast<const std::byte*>(fields.data),
                     .size = size,
                     .stride = fields.strides[0],
                     .type = type_});
  }

  // Checks the array's type, and remembers it unless NumPy has to convert it.
  [[gnu::noinline]] void AddOfOtherType(const py::array& array) {
    const convert::StridedArray numbers = reader_.ReadNumbers(kind_, array);
    if (kind_ == NumberKind::kIds) {
      common_type_.Add(numbers.type.dtype);
      if (!common_type_.Get()) {
        reader_.ThrowTypeError(
            "the rows of its ids are of signed and of 64-bit unsigned "
            "integers, which no type has in common. Convert them, for example "
            "with row.astype(np.int64).");
      }
    }
    if (ElementTypeOf(array.dtype())) {
      descr_ = Fields(array).descr;
      type_ = numbers.type;
    }
    numbers_.AddRun({.data = numbers.data,
                     .size = numbers.size(),
                     .stride = numbers.strides[0],
                     .type = numbers.type});
  }

  [[noreturn, gnu::noinline]] void ThrowNotFlat(int64_t r,
                                                py::handle object) const {
    reader_.ThrowTypeError("row ", r, " of its ", What(),
                           " must be a 1-D array or a list of numbers, got ",
                           py::repr(object).cast<std::string>(), ".");
  }

  // One row alone is too much. Sums of others do not overflow.
  [[noreturn, gnu::noinline]] void ThrowTooLong(int64_t r, int64_t size) const {
    reader_.ThrowValueError("row ", r, " of its ", What(), " has ", size,
                            " numbers, and a feature can have at most ",
                            convert::kMaxIds,
                            " in one step on one host. Use smaller batches.");
  }

  std::string_view What() const {
    return kind_ == NumberKind::kIds ? "ids" : "weights";
  }

  FeatureReader& reader_;
  const NumberKind kind_;
  ListedNumbers numbers_;
  PyObject* last_owner_ = nullptr;  // is kept
  // The type of the rows so far. Borrowed from a row, which stays alive.
  PyObject* descr_ = nullptr;
  convert::ElementType type_;
  convert::CommonIdType common_type_;
};

void CheckSameLengths(const FeatureReader& reader, const ListedNumbers& ids,
                      const ListedNumbers& weights) {
  if (ids.HasLengthsOf(weights)) return;
  const int64_t r = FirstDifferentRow(ids.Splits(), weights.Splits());
  const auto size = [r](const ListedNumbers& numbers) {
    const convert::StridedArray splits = numbers.Splits();
    return IntegerAt(splits, r + 1) - IntegerAt(splits, r);
  };
  reader.ThrowValueError("row ", r, " has ", size(ids), " ids and ",
                         size(weights), " weights. Pass one weight per id.");
}

}  // namespace

convert::RawBatch ReadRows(FeatureReader& reader, py::handle ids_object,
                           py::handle weights_object) {
  ListedNumbers ids = RowReader(reader, NumberKind::kIds)
                          .Read(py::reinterpret_borrow<py::array>(ids_object));
  convert::RawBatch batch = {
      .feature_name = reader.name(),
      .ids = ids.TakeNumbers(),
      .weights = std::nullopt,
      .samples = convert::RowSplits{ids.Splits(), /*are_private=*/true}};
  if (weights_object.is_none()) return batch;
  const py::array array = reader.ReadArray("weights", weights_object);
  if (array.dtype().kind() != 'O' || !IsColumn(array)) {
    reader.ThrowValueError(
        "ids are ragged, so weights must be an object array of rows too, got "
        "shape ",
        ShapeOf(array), " of dtype ", DtypeOf(array), ".");
  }
  ListedNumbers weights = RowReader(reader, NumberKind::kWeights).Read(array);
  if (weights.num_lists() != ids.num_lists()) {
    reader.ThrowValueError("ids have ", ids.num_lists(), " rows and weights ",
                           weights.num_lists(), ".");
  }
  CheckSameLengths(reader, ids, weights);
  batch.weights = weights.TakeNumbers();
  return batch;
}

}  // namespace jte::binding
