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

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#ifdef JTE_HAS_AVX2_CODE
#include <immintrin.h>  // declares the built-in functions below
#endif

namespace jte {

template <typename T, int N>
struct VectorOf {
  typedef T type [[gnu::vector_size(N * sizeof(T))]];
};
// N numbers, in as many registers as the machine needs for them.
template <typename T, int N>
using Vector = typename VectorOf<T, N>::type;

// How a function returns a vector depends on what processors it is for, of
// which GCC warns, also for those that are an instruction. So results are
// arguments.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

// Integers without a sign, of 8 or 16 bits, as such of 32. With 8 lanes and
// more, only in code of WithVectorLanes.
template <typename T, int N>
[[gnu::always_inline]] inline void Widen(const Vector<T, N>& values,
                                         Vector<uint32_t, N>& wide) {
  // GCC makes four instructions of a conversion of 8 and more, where there is
  // one. And the functions of immintrin.h cannot be inlined into a function for
  // all processors, which this is by itself.
#ifdef JTE_HAS_AVX2_CODE
  if constexpr (N == 8 && sizeof(T) == 1) {
    const Vector<uint64_t, 2> low = {std::bit_cast<uint64_t>(values)};
    wide =
        (Vector<uint32_t, N>)__builtin_ia32_pmovzxbd256((Vector<char, 16>)low);
    return;
  }
  if constexpr (N == 8 && sizeof(T) == 2) {
    wide = (Vector<uint32_t, N>)__builtin_ia32_pmovzxwd256(
        (Vector<int16_t, N>)values);
    return;
  }
#endif
#ifdef JTE_HAS_AVX512_CODE
  if constexpr (N == 16 && sizeof(T) == 1) {
    wide = (Vector<uint32_t, N>)__builtin_ia32_pmovzxbd512_mask(
        (Vector<char, N>)values, Vector<int32_t, N>{}, /*mask=*/-1);
    return;
  }
  if constexpr (N == 16 && sizeof(T) == 2) {
    wide = (Vector<uint32_t, N>)__builtin_ia32_pmovzxwd512_mask(
        (Vector<int16_t, N>)values, Vector<int32_t, N>{}, /*mask=*/-1);
    return;
  }
#endif
  wide = __builtin_convertvector(values, Vector<uint32_t, N>);
}

// As ToFloat of float16.h, from the bits of each value of type T. With 8 lanes
// and more, only in code of WithVectorLanes, and what is no number may become a
// quiet NaN.
template <typename T, int N>
[[gnu::always_inline]] inline void ToFloats(const Vector<uint16_t, N>& values,
                                            Vector<float, N>& floats) {
  using Bits = Vector<uint32_t, N>;
  using Floats = Vector<float, N>;
  // F16C has an instruction for it.
#ifdef JTE_HAS_AVX2_CODE
  if constexpr (std::is_same_v<T, Float16> && N == 8) {
    floats = __builtin_ia32_vcvtph2ps256((Vector<int16_t, N>)values);
    return;
  }
#endif
#ifdef JTE_HAS_AVX512_CODE
  if constexpr (std::is_same_v<T, Float16> && N == 16) {
    floats =
        __builtin_ia32_vcvtph2ps512_mask((Vector<int16_t, N>)values, Floats{},
                                         /*mask=*/-1, _MM_FROUND_CUR_DIRECTION);
    return;
  }
#endif
  Bits bits;
  Widen<uint16_t, N>(values, bits);
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

#pragma GCC diagnostic pop

// The next N values from `values` on, which may be anywhere, under the same
// conditions.
template <int N, typename T>
[[gnu::always_inline]] inline void ReadFloats(const T* values,
                                              Vector<float, N>& floats) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(&floats, values, sizeof(floats));
  } else {
    Vector<uint16_t, N> stored;
    std::memcpy(&stored, values, sizeof(stored));
    ToFloats<T, N>(stored, floats);
  }
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT_VECTORS_H_
