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

#include "jax_tpu_embedding/sparsecore/cc/binding/arrow_array.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/feature_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/listed_numbers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/raw_array.h"
#include "pybind11/pybind11.h"

namespace jte {
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

std::optional<DType> DTypeOf(std::string_view format) {
  constexpr std::string_view kFormats = "csilCSILefg";
  constexpr DType kTypes[] = {
      DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
      DType::kUint8,   DType::kUint16,  DType::kUint32,  DType::kUint64,
      DType::kFloat16, DType::kFloat32, DType::kFloat64,
  };
  const size_t i = kFormats.find(format);
  if (format.size() != 1 || i == std::string_view::npos) return std::nullopt;
  return kTypes[i];
}

bool HasNulls(const ArrowArray& array, int64_t begin, int64_t end) {
  const auto* bitmap = array.n_buffers > 0
                           ? static_cast<const uint8_t*>(array.buffers[0])
                           : nullptr;
  if (array.null_count == 0 || bitmap == nullptr) return false;
  for (int64_t i = array.offset + begin; i < array.offset + end; ++i) {
    if ((bitmap[i / 8] >> (i % 8) & 1) == 0) return true;
  }
  return false;
}

// The lists of a column, and their numbers in one run per chunk.
class ListColumn {
 public:
  ListColumn(FeatureReader& reader, NumberKind kind)
      : reader_(reader), kind_(kind) {}

  void Read(py::handle object) {
    if (!py::hasattr(object, "__arrow_c_array__")) {
      ReadStream(object);
      return;
    }
    const py::tuple capsules = object.attr("__arrow_c_array__")();
    const auto* schema =
        capsules[0].cast<py::capsule>().get_pointer<ArrowSchema>();
    const auto* array =
        capsules[1].cast<py::capsule>().get_pointer<ArrowArray>();
    reader_.Keep(capsules);  // They own what they point to.
    ReadType(*schema);
    ReadChunk(*array);
  }

  // What was read; the memory of its splits is kept alive.
  ListedNumbers& Lists() {
    reader_.Keep(lists_.memory());
    return lists_;
  }

 private:
  void ReadStream(py::handle object) {
    const py::object capsule = object.attr("__arrow_c_stream__")();
    auto* stream = py::reinterpret_borrow<py::capsule>(capsule)
                       .get_pointer<ArrowArrayStream>();
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

  void ReadType(const ArrowSchema& schema) {
    const std::string_view format = schema.format;
    const auto list_size = [format] {
      int64_t size = -1;
      std::from_chars(format.data() + 3, format.data() + format.size(), size);
      return size;
    };
    const ArrowSchema* numbers = &schema;
    if (format == "+l" || format == "+L") {
      offset_size_ = format == "+l" ? 4 : 8;
      numbers = schema.children[0];
    } else if (format.starts_with("+w:")) {
      list_size_ = list_size();
      numbers = schema.children[0];
    } else {
      list_size_ = 1;  // A flat column: lists of one number.
      is_flat_ = true;
    }
    const auto type = DTypeOf(numbers->format);
    if (!type || numbers->dictionary != nullptr ||
        (kind_ == NumberKind::kIds && !IsInteger(*type))) {
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
    CheckNoNulls(array, 0, array.length);
    lists_.Expect(array.length, 1);
    if (offset_size_ == 4) return ReadLists<int32_t>(array);
    if (offset_size_ == 8) return ReadLists<int64_t>(array);
    for (int64_t i = 0; i < array.length; ++i) {
      lists_.AddList(list_size_);
    }
    const int64_t size = array.length * list_size_;
    if (is_flat_) {
      AddNumbers(array, 0, size);
    } else {
      AddNumbers(*array.children[0], array.offset * list_size_, size);
    }
  }

  template <typename Offset>
  void ReadLists(const ArrowArray& array) {
    const auto* offsets =
        static_cast<const Offset*>(array.buffers[1]) + array.offset;
    if (array.length == 0) return;
    const ArrowArray& numbers = *array.children[0];
    for (int64_t i = 0; i < array.length; ++i) {
      lists_.AddList(int64_t{offsets[i + 1]} - offsets[i]);
    }
    const int64_t first = offsets[0];
    const int64_t last = offsets[array.length];
    if (first < 0 || last < first || last > numbers.length) {
      reader_.ThrowValueError("the offsets of its Arrow array go from ", first,
                              " to ", last, ", and it has ", numbers.length,
                              " numbers. Check it with validate(full=True).");
    }
    AddNumbers(numbers, first, last - first);
  }

  void AddNumbers(const ArrowArray& numbers, int64_t first, int64_t size) {
    CheckNoNulls(numbers, first, first + size);
    const int64_t stride = SizeOf(type_);
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
  DType type_ = DType::kInt32;
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

RawBatch ReadArrow(FeatureReader& reader, py::handle object,
                   py::handle weights_object) {
  ListColumn id_column(reader, NumberKind::kIds);
  id_column.Read(object);
  ListedNumbers& ids = id_column.Lists();
  RawBatch batch = {.feature_name = reader.name(),
                    .ids = ids.TakeNumbers(),
                    .weights = std::nullopt,
                    .samples = RowSplits{ids.Splits()}};
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

}  // namespace jte
