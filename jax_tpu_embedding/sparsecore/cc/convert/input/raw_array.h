// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Numbers where the caller has them, and how they become those that the
// converter reads: contiguous, aligned, in the machine's byte order, and of one
// of five types.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_ARRAY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_ARRAY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace jte::convert {

enum class DType : uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};

int64_t SizeOf(DType dtype);
bool IsInteger(DType dtype);

struct ElementType {
  DType dtype = DType::kInt32;
  bool byte_swapped = false;

  bool operator==(const ElementType&) const = default;
};

// Elements that lie `stride` bytes apart, aligned or not.
struct StridedRun {
  const std::byte* data = nullptr;
  int64_t size = 0;
  int64_t stride = 0;
  ElementType type;
};

// A matrix; an array of one dimension is a matrix of one column.
struct StridedArray {
  const std::byte* data = nullptr;
  ElementType type;
  std::array<int64_t, 2> shape = {0, 1};
  std::array<int64_t, 2> strides = {0, 0};  // in bytes

  int64_t size() const { return shape[0] * shape[1]; }

  // Whether a span of that type can view the elements.
  bool IsPlain(DType dtype) const;
  template <typename T>
  std::span<const T> View() const {
    return {reinterpret_cast<const T*>(data), static_cast<size_t>(size())};
  }
};

// Writes the elements of `runs`, one after the other, as T: int32_t, int64_t,
// uint32_t or uint64_t for integers that fit, float for any. Rounds to nearest.
template <typename T>
void Convert(std::span<const StridedRun> runs, T* out);

// The elements [begin, end) of `array`, row by row.
template <typename T>
void Convert(const StridedArray& array, int64_t begin, int64_t end, T* out);

// The type that ids of one type, or of several, are converted to.
class CommonIdType {
 public:
  void Add(DType integer);

  // kInt32, kInt64, kUint32 or kUint64, the first that has all numbers of all
  // types; none if there is no such type.
  std::optional<DType> Get() const;

 private:
  bool has_signed_ = false;
  bool has_int64_ = false;
  bool has_uint32_ = false;
  bool has_uint64_ = false;
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_RAW_ARRAY_H_
