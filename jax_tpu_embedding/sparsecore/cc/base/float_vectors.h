// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Several floats at once, read from values of any type that a table may have.
//
// For the loops in which rows are added up. GCC 12 keeps sums in registers if
// they are vectors as long as a register (WithVectorLanes) or shorter, and all
// loops over them are unrolled; of an array of 64 floats it makes memory, or
// vectors of half the length that the machine has.
//
//   Vector<float, kLanes> sum = {};
//   Vector<float, kLanes> values;
//   ReadFloats(row, values);
//   sum += gain * values;

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT_VECTORS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT_VECTORS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"

namespace jte {

template <typename T, int N>
struct VectorOf {
  typedef T type [[gnu::vector_size(N * sizeof(T))]];
};
// N numbers, in as many registers as the machine needs for them.
template <typename T, int N>
using Vector = typename VectorOf<T, N>::type;

// As ToFloat of float16.h, from the bits of each value.
template <typename T, typename Bits, typename Floats>
[[gnu::always_inline]] inline void WidenBits(const Bits& bits, Floats& floats) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    floats = (Floats)(bits << 16);
  } else {
    static_assert(std::is_same_v<T, Float16>);
    constexpr uint32_t kRebias = uint32_t{127 - 15} << 23;
    constexpr uint32_t kHidden = uint32_t{1} << 23;
    const Bits sign = (bits & 0x8000u) << 16;
    const Bits magnitude = (bits & 0x7fffu) << 13;
    const Bits normal = magnitude + kRebias;
    const Bits infinite = normal + kRebias;
    const Bits zero = magnitude - magnitude;
    const Floats smallest = (Floats)(zero + (kRebias + kHidden));
    const Floats subnormal =
        (Floats)(magnitude + (kRebias + kHidden)) - smallest;
    Bits result =
        magnitude >= (zero + (uint32_t{31} << 23)) ? infinite : normal;
    result = magnitude < (zero + kHidden) ? (Bits)subnormal : result;
    floats = (Floats)(result | sign);
  }
}

// The next N values from `values` on, which may be anywhere.
template <int N, typename T>
[[gnu::always_inline]] inline void ReadFloats(const T* values,
                                              Vector<float, N>& floats) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(&floats, values, sizeof(floats));
  } else {
    Vector<uint16_t, N> stored;
    std::memcpy(&stored, values, sizeof(stored));
    WidenBits<T>(__builtin_convertvector(stored, Vector<uint32_t, N>), floats);
  }
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT_VECTORS_H_
