// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"

namespace jte::convert {
namespace {

template <size_t size>
struct UnsignedOf;
template <>
struct UnsignedOf<1> : std::type_identity<uint8_t> {};
template <>
struct UnsignedOf<2> : std::type_identity<uint16_t> {};
template <>
struct UnsignedOf<4> : std::type_identity<uint32_t> {};
template <>
struct UnsignedOf<8> : std::type_identity<uint64_t> {};

// A number of type `From`; a float of 16 bits as one of 32.
template <typename From, bool byte_swapped>
auto Load(const std::byte* from) {
  typename UnsignedOf<sizeof(From)>::type bits;
  std::memcpy(&bits, from, sizeof(bits));
  if constexpr (byte_swapped) bits = std::byteswap(bits);
  const auto value = std::bit_cast<From>(bits);
  if constexpr (std::is_class_v<From>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

template <typename From, bool byte_swapped, typename To>
void ConvertAs(const std::byte* from, int64_t size, int64_t stride, To* out) {
  constexpr int64_t kItemSize = sizeof(From);
  if (stride == kItemSize) {  // A loop that can be vectorized.
    for (int64_t i = 0; i < size; ++i) {
      out[i] = static_cast<To>(Load<From, byte_swapped>(from + i * kItemSize));
    }
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<To>(Load<From, byte_swapped>(from + i * stride));
  }
}

// Calls visitor.operator()<T>() with the C++ type of `dtype`.
template <typename Visitor>
auto VisitType(DType dtype, Visitor visitor) {
  switch (dtype) {
    case DType::kInt8:
      return visitor.template operator()<int8_t>();
    case DType::kInt16:
      return visitor.template operator()<int16_t>();
    case DType::kInt32:
      return visitor.template operator()<int32_t>();
    case DType::kInt64:
      return visitor.template operator()<int64_t>();
    case DType::kUint8:
      return visitor.template operator()<uint8_t>();
    case DType::kUint16:
      return visitor.template operator()<uint16_t>();
    case DType::kUint32:
      return visitor.template operator()<uint32_t>();
    case DType::kUint64:
      return visitor.template operator()<uint64_t>();
    case DType::kFloat16:
      return visitor.template operator()<Float16>();
    case DType::kBfloat16:
      return visitor.template operator()<Bfloat16>();
    case DType::kFloat32:
      return visitor.template operator()<float>();
    case DType::kFloat64:
      break;
  }
  return visitor.template operator()<double>();
}

template <typename To>
void ConvertElements(ElementType type, const std::byte* from, int64_t size,
                     int64_t stride, To* out) {
  VisitType(type.dtype, [type, from, size, stride, out]<typename From>() {
    // Ids are integers: nobody converts floats to them.
    if constexpr (std::integral<From> || std::same_as<To, float>) {
      if (type.byte_swapped) {
        ConvertAs<From, true>(from, size, stride, out);
      } else {
        ConvertAs<From, false>(from, size, stride, out);
      }
    }
  });
}

template <typename T>
constexpr DType kDTypeOf = DType::kInt32;
template <>
constexpr DType kDTypeOf<int64_t> = DType::kInt64;
template <>
constexpr DType kDTypeOf<uint32_t> = DType::kUint32;
template <>
constexpr DType kDTypeOf<uint64_t> = DType::kUint64;
template <>
constexpr DType kDTypeOf<float> = DType::kFloat32;

}  // namespace

int64_t SizeOf(DType dtype) {
  return VisitType(dtype, []<typename T>() -> int64_t { return sizeof(T); });
}

bool IsInteger(DType dtype) {
  return VisitType(dtype, []<typename T>() { return std::integral<T>; });
}

bool StridedArray::IsPlain(DType dtype) const {
  if (type.dtype != dtype || type.byte_swapped) return false;
  if (size() == 0) return true;
  const int64_t item_size = SizeOf(dtype);
  return (shape[1] == 1 || strides[1] == item_size) &&
         (shape[0] == 1 || strides[0] == shape[1] * item_size) &&
         reinterpret_cast<uintptr_t>(data) % item_size == 0;
}

template <typename T>
void Convert(std::span<const StridedRun> runs, T* out) {
  for (const StridedRun& run : runs) {
    // Most runs are short, and can be copied.
    if (run.type.dtype == kDTypeOf<T> && !run.type.byte_swapped &&
        run.stride == sizeof(T)) {
      std::memcpy(out, run.data, run.size * sizeof(T));
    } else {
      ConvertElements(run.type, run.data, run.size, run.stride, out);
    }
    out += run.size;
  }
}

template <typename T>
void Convert(const StridedArray& array, int64_t begin, int64_t end, T* out) {
  const auto [row_stride, column_stride] = array.strides;
  // Rows that follow each other, such as single elements, are one run.
  const int64_t num_columns = array.shape[1];
  if (num_columns == 1 || row_stride == num_columns * column_stride) {
    const int64_t stride = num_columns == 1 ? row_stride : column_stride;
    ConvertElements(array.type, array.data + begin * stride, end - begin,
                    stride, out);
    return;
  }
  while (begin < end) {
    const int64_t column = begin % num_columns;
    const int64_t size = std::min(num_columns - column, end - begin);
    ConvertElements(
        array.type,
        array.data + begin / num_columns * row_stride + column * column_stride,
        size, column_stride, out);
    begin += size;
    out += size;
  }
}

template void Convert(std::span<const StridedRun>, int32_t*);
template void Convert(std::span<const StridedRun>, int64_t*);
template void Convert(std::span<const StridedRun>, uint32_t*);
template void Convert(std::span<const StridedRun>, uint64_t*);
template void Convert(std::span<const StridedRun>, float*);
template void Convert(const StridedArray&, int64_t, int64_t, int32_t*);
template void Convert(const StridedArray&, int64_t, int64_t, int64_t*);
template void Convert(const StridedArray&, int64_t, int64_t, uint32_t*);
template void Convert(const StridedArray&, int64_t, int64_t, uint64_t*);
template void Convert(const StridedArray&, int64_t, int64_t, float*);

void CommonIdType::Add(DType integer) {
  has_signed_ |=
      VisitType(integer, []<typename T>() { return std::signed_integral<T>; });
  has_int64_ |= integer == DType::kInt64;
  has_uint32_ |= integer == DType::kUint32;
  has_uint64_ |= integer == DType::kUint64;
}

std::optional<DType> CommonIdType::Get() const {
  if (has_uint64_) {
    if (has_signed_) return std::nullopt;
    return DType::kUint64;
  }
  if (has_int64_ || (has_uint32_ && has_signed_)) return DType::kInt64;
  return has_uint32_ ? DType::kUint32 : DType::kInt32;
}

}  // namespace jte::convert
