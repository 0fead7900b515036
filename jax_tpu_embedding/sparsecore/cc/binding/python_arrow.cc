// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ids as Arrow arrays of lists: List, LargeList and FixedSizeList, in one array
// or in the chunks of a ChunkedArray.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "jax_tpu_embedding/sparsecore/cc/binding/arrow_array.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/listed_numbers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

template <typename ArrowStruct>
std::shared_ptr<ArrowStruct> NewArrowStruct() {
  return std::shared_ptr<ArrowStruct>(new ArrowStruct{},
                                      [](ArrowStruct* arrow) {
                                        if (arrow->release) {
                                          arrow->release(arrow);
                                        }
                                        delete arrow;
                                      });
}

std::optional<convert::DType> DTypeOf(std::string_view format) {
  constexpr std::string_view kFormats = "csilCSILefg";
  constexpr convert::DType kTypes[] = {
      convert::DType::kInt8,    convert::DType::kInt16,
      convert::DType::kInt32,   convert::DType::kInt64,
      convert::DType::kUint8,   convert::DType::kUint16,
      convert::DType::kUint32,  convert::DType::kUint64,
      convert::DType::kFloat16, convert::DType::kFloat32,
      convert::DType::kFloat64,
  };
  const size_t i = kFormats.find(format);
  if (format.size() != 1 || i == std::string_view::npos) return std::nullopt;
  return kTypes[i];
}

// Whether elements [begin, end) of an array that was checked have a null.
bool HasNulls(const ArrowArray& array, int64_t begin, int64_t end) {
  const auto* bitmap = static_cast<const uint8_t*>(array.buffers[0]);
  if (array.null_count == 0 || bitmap == nullptr) return false;
  for (int64_t i = array.offset + begin; i < array.offset + end; ++i) {
    if ((bitmap[i / 8] >> (i % 8) & 1) == 0) return true;
  }
  return false;
}

// The lists of a column, and their numbers in one run per chunk.
//
// The structs come from any library, so all that they say is checked before it
// is used. Only the sizes of buffers have to be believed: they are nowhere.
class ListColumn {
 public:
  ListColumn(FeatureReader& reader, NumberKind kind)
      : reader_(reader), kind_(kind) {}

  void Read(py::handle object) {
    if (!py::hasattr(object, "__arrow_c_array__")) {
      ReadStream(object);
      return;
    }
    const py::object pair = object.attr("__arrow_c_array__")();
    if (!PyTuple_Check(pair.ptr()) || py::len(pair) != 2) {
      reader_.ThrowTypeError(
          "its __arrow_c_array__ must return two capsules, got ",
          py::repr(pair).cast<std::string>(), ".");
    }
    reader_.Keep(pair);  // The capsules own what they point to.
    const auto capsules = py::reinterpret_borrow<py::tuple>(pair);
    ReadType(*FromCapsule<ArrowSchema>(capsules[0], "arrow_schema"));
    ReadChunk(*FromCapsule<ArrowArray>(capsules[1], "arrow_array"));
  }

  // What was read; the memory of its splits is kept alive.
  ListedNumbers& Lists() {
    reader_.Keep(lists_.memory());
    return lists_;
  }

 private:
  void ReadStream(py::handle object) {
    const py::object capsule = object.attr("__arrow_c_stream__")();
    auto* const stream =
        FromCapsule<ArrowArrayStream>(capsule, "arrow_array_stream");
    Check(stream->get_schema != nullptr && stream->get_next != nullptr &&
              stream->get_last_error != nullptr,
          "a stream without its functions");
    const auto check = [this, stream](int error) {
      if (error == 0) return;
      const char* message = stream->get_last_error(stream);
      reader_.ThrowValueError("its Arrow stream failed: ",
                              message ? message : "unknown error");
    };
    const auto schema = NewArrowStruct<ArrowSchema>();
    check(stream->get_schema(stream, schema.get()));
    ReadType(*schema);
    while (true) {
      const auto chunk = NewArrowStruct<ArrowArray>();
      check(stream->get_next(stream, chunk.get()));
      if (chunk->release == nullptr) return;
      reader_.Keep(chunk);
      ReadChunk(*chunk);
    }
  }

  // What a capsule of that name points to.
  template <typename ArrowStruct>
  ArrowStruct* FromCapsule(py::handle object, const char* name) const {
    if (!PyCapsule_IsValid(object.ptr(), name)) {
      reader_.ThrowTypeError("its Arrow data must come in a capsule named '",
                             name, "', got ",
                             py::repr(object).cast<std::string>(), ".");
    }
    auto* const arrow =
        static_cast<ArrowStruct*>(PyCapsule_GetPointer(object.ptr(), name));
    if (arrow->release == nullptr) {
      reader_.ThrowValueError("its ", name,
                              " was released, or used before. Pass a new one.");
    }
    return arrow;
  }

  // The only child of a list's schema or array.
  template <typename ArrowStruct>
  const ArrowStruct& NumbersOf(const ArrowStruct& list) const {
    Check(list.n_children == 1 && list.children != nullptr &&
              list.children[0] != nullptr &&
              list.children[0]->release != nullptr,
          "a list without its numbers");
    return *list.children[0];
  }

  void Check(bool holds, std::string_view what) const {
    if (holds) return;
    reader_.ThrowValueError("its Arrow array is malformed: it has ", what,
                            ". Check it with validate(full=True).");
  }

  // One array: `num_buffers` of the lengths that the type demands, of which the
  // first may be missing.
  void CheckArray(const ArrowArray& array, int64_t num_buffers) const {
    // More than any memory has, and few enough that sums of them fit int64.
    constexpr int64_t kMaxCount = int64_t{1} << 48;
    for (const int64_t count : {array.length, array.offset}) {
      Check(count >= 0 && count <= kMaxCount,
            "a length or an offset that cannot be");
    }
    Check(array.n_buffers == num_buffers && array.buffers != nullptr,
          "another number of buffers than its type");
    for (int64_t i = 1; i < num_buffers; ++i) {
      Check(array.length == 0 || array.buffers[i] != nullptr,
            "no memory for its elements");
    }
    Check(array.null_count <= 0 || array.buffers[0] != nullptr,
          "nulls, and no bitmap that says where");
  }

  void ReadType(const ArrowSchema& schema) {
    Check(schema.format != nullptr, "a type without a format");
    const std::string_view format = schema.format;
    const ArrowSchema* numbers = &schema;
    if (format == "+l" || format == "+L") {
      offset_size_ = format == "+l" ? 4 : 8;
      numbers = &NumbersOf(schema);
    } else if (format.starts_with("+w:")) {
      const char* const end = format.data() + format.size();
      const auto [rest, error] =
          std::from_chars(format.data() + 3, end, list_size_);
      Check(error == std::errc() && rest == end && list_size_ >= 0,
            "lists of a size that cannot be");
      numbers = &NumbersOf(schema);
    } else {
      list_size_ = 1;  // A flat column: lists of one number.
      is_flat_ = true;
    }
    Check(numbers->format != nullptr, "a type without a format");
    const auto type = DTypeOf(numbers->format);
    if (!type || numbers->dictionary != nullptr ||
        (kind_ == NumberKind::kIds && !convert::IsInteger(*type))) {
      reader_.ThrowTypeError(
          kind_ == NumberKind::kIds ? "ids must be integers"
                                    : "weights must be real numbers",
          ", or lists of them, got an Arrow array of format '", format,
          numbers != &schema ? StrCat("' of '", numbers->format) : "",
          "'. Cast it, for example to pa.list_(pa.",
          kind_ == NumberKind::kIds ? "int32" : "float32", "()).");
    }
    type_ = *type;
  }

  void ReadChunk(const ArrowArray& array) {
    // Arrays of numbers and of lists have two buffers: the bitmap of nulls,
    // and numbers or offsets. Lists of one size have only the first.
    const bool is_fixed_list = offset_size_ == 0 && !is_flat_;
    CheckArray(array, is_fixed_list ? 1 : 2);
    reader_.CheckNumSamples(lists_.num_lists() + array.length);
    CheckNoNulls(array, 0, array.length);
    lists_.Expect(array.length, 1);
    if (array.length == 0) return;
    if (is_flat_) {
      for (int64_t i = 0; i < array.length; ++i) lists_.AddList(1);
      return AddNumbers(array, 0, array.length);
    }
    const ArrowArray& numbers = NumbersOf(array);
    CheckArray(numbers, 2);
    if (offset_size_ == 4) return ReadLists<int32_t>(array, numbers);
    if (offset_size_ == 8) return ReadLists<int64_t>(array, numbers);
    int64_t end = 0;
    Check(!__builtin_mul_overflow(array.offset + array.length, list_size_,
                                  &end) &&
              end <= numbers.length,
          "fewer numbers than its lists of one size need");
    for (int64_t i = 0; i < array.length; ++i) lists_.AddList(list_size_);
    AddNumbers(numbers, array.offset * list_size_, array.length * list_size_);
  }

  // Reads each offset once: others may write it.
  template <typename Offset>
  void ReadLists(const ArrowArray& array, const ArrowArray& numbers) {
    const auto* offsets =
        static_cast<const Offset*>(array.buffers[1]) + array.offset;
    const int64_t first = offsets[0];
    int64_t last = first;
    Check(first >= 0, "offsets that are negative");
    for (int64_t i = 1; i <= array.length; ++i) {
      const int64_t end = offsets[i];
      Check(last <= end && end <= numbers.length,
            "offsets that descend, or lead beyond its numbers");
      lists_.AddList(end - last);
      last = end;
    }
    AddNumbers(numbers, first, last - first);
  }

  // Adds numbers [first, first + size), which the array has.
  void AddNumbers(const ArrowArray& numbers, int64_t first, int64_t size) {
    if (size == 0) return;
    CheckNoNulls(numbers, first, first + size);
    const int64_t stride = convert::SizeOf(type_);
    lists_.AddRun({.data = static_cast<const std::byte*>(numbers.buffers[1]) +
                           (numbers.offset + first) * stride,
                   .size = size,
                   .stride = stride,
                   .type = {.dtype = type_}});
  }

  void CheckNoNulls(const ArrowArray& array, int64_t begin, int64_t end) const {
    if (!HasNulls(array, begin, end)) return;
    reader_.ThrowValueError(
        "its ", kind_ == NumberKind::kIds ? "ids" : "weights",
        " have nulls. Replace them, for example with fill_null, or drop them.");
  }

  FeatureReader& reader_;
  const NumberKind kind_;
  int64_t offset_size_ = 0;  // 0: lists of list_size_ numbers
  int64_t list_size_ = 0;
  bool is_flat_ = false;
  convert::DType type_ = convert::DType::kInt32;
  ListedNumbers lists_;
};

}  // namespace

bool IsArrow(py::handle object) {
  // Series of pandas have a stream too, and need pyarrow to give it. NumPy
  // reads them.
  return py::hasattr(object, "__arrow_c_array__") ||
         (py::hasattr(object, "__arrow_c_stream__") &&
          py::hasattr(object, "chunks"));
}

convert::RawBatch ReadArrow(FeatureReader& reader, py::handle object,
                            py::handle weights_object) {
  ListColumn id_column(reader, NumberKind::kIds);
  id_column.Read(object);
  ListedNumbers& ids = id_column.Lists();
  convert::RawBatch batch = {
      .feature_name = reader.name(),
      .ids = ids.TakeNumbers(),
      .weights = std::nullopt,
      .samples = convert::RowSplits{ids.Splits(), /*are_private=*/true}};
  if (weights_object.is_none()) return batch;
  if (!IsArrow(weights_object)) {
    reader.ThrowTypeError(
        "its ids are an Arrow array, and its weights are of type ",
        py::type::of(weights_object).attr("__name__").cast<std::string>(),
        ". Pass an Arrow array of the same lists.");
  }
  ListColumn weight_column(reader, NumberKind::kWeights);
  weight_column.Read(weights_object);
  ListedNumbers& weights = weight_column.Lists();
  if (weights.num_lists() != ids.num_lists()) {
    reader.ThrowValueError("ids have ", ids.num_lists(), " lists and weights ",
                           weights.num_lists(), ".");
  }
  if (const int64_t r = FirstDifferentRow(ids.Splits(), weights.Splits());
      r >= 0) {
    reader.ThrowValueError("list ", r,
                           " of its weights is not as long as that "
                           "of its ids. Pass one weight per id.");
  }
  batch.weights = weights.TakeNumbers();
  return batch;
}

}  // namespace jte::binding
