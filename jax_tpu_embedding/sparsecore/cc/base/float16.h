// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The floats of 16 bits, and conversions that compilers vectorize for every
// instruction set: integer arithmetic and blends only.
//
// Rounding to nearest is that of IEEE 754. Rounding at random keeps the mean:
// the smaller neighbour is taken with a probability in proportion to how near
// it is. lib/core/low_precision.py has the same in jnp, with the same bits.
//
//   bfloat16  s eeeeeeee fffffff           the upper half of a float
//   float16   s eeeee ffffffffff           exponents -14 to 15

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT16_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT16_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte {

struct Bfloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

static_assert(sizeof(Bfloat16) == 2 && sizeof(Float16) == 2);

inline constexpr uint32_t kSignBit = 0x80000000;
inline constexpr uint32_t kFloatInfinity = 0x7f800000;
inline constexpr uint32_t kQuietNaN = 0x7fc00000;

[[gnu::always_inline]] JTE_HOST_DEVICE inline float ToFloat(float value) {
  return value;
}

[[gnu::always_inline]] JTE_HOST_DEVICE inline float ToFloat(Bfloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

[[gnu::always_inline]] JTE_HOST_DEVICE inline float ToFloat(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  // The exponent's bias is 15 in one format and 127 in the other.
  constexpr uint32_t kRebias = uint32_t{127 - 15} << 23;
  const uint32_t normal = magnitude + kRebias;
  const uint32_t infinite = normal + kRebias;  // the largest exponent
  // With the smallest exponent there is no implicit one; neither number is
  // subnormal, so that this works where those are flushed.
  constexpr uint32_t kSmallest = kRebias + (uint32_t{1} << 23);
  const auto subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + kSmallest) -
                              std::bit_cast<float>(kSmallest));
  uint32_t bits = magnitude >= (uint32_t{31} << 23) ? infinite : normal;
  bits = magnitude < (uint32_t{1} << 23) ? subnormal : bits;
  return std::bit_cast<float>(bits | sign);
}

// T: Bfloat16 or Float16.
template <typename T>
JTE_HOST_DEVICE T RoundToNearest(float value);

template <>
[[gnu::always_inline]] JTE_HOST_DEVICE inline Bfloat16 RoundToNearest<Bfloat16>(
    float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool is_nan = (bits & ~kSignBit) > kFloatInfinity;
  return {static_cast<uint16_t>((is_nan ? bits | kQuietNaN : rounded) >> 16)};
}

template <>
[[gnu::always_inline]] JTE_HOST_DEVICE inline Float16 RoundToNearest<Float16>(
    float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & ~kSignBit;
  constexpr uint32_t kRebias = uint32_t{127 - 15} << 23;
  const uint32_t normal =
      (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 all results are multiples of 2^-24, the last place of numbers
  // from 0.5 to 1, and the addition rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      std::bit_cast<uint32_t>(0.5f);
  uint32_t result = magnitude < (uint32_t{127 - 14} << 23) ? subnormal : normal;
  // From halfway between 65504 and 2^16 on.
  result = magnitude >= 0x477ff000 ? 0x7c00u : result;
  result = magnitude > kFloatInfinity ? 0x7e00u : result;
  return {static_cast<uint16_t>(result | ((bits & kSignBit) >> 16))};
}

// `noise` is from 0 to 2^16 - 1, in the upper half of `random`.
template <typename T>
JTE_HOST_DEVICE T RoundAtRandom(float value, uint32_t random);

template <>
[[gnu::always_inline]] JTE_HOST_DEVICE inline Bfloat16 RoundAtRandom<Bfloat16>(
    float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  uint32_t upper = (bits + (random >> 16)) >> 16;
  upper -= (upper & 0x7fff) == 0x7f80;  // what is finite stays finite
  const bool is_finite = (bits & kFloatInfinity) != kFloatInfinity;
  const uint32_t rounded = RoundToNearest<Bfloat16>(value).bits;
  return {static_cast<uint16_t>(is_finite ? upper : rounded)};
}

template <>
[[gnu::always_inline]] JTE_HOST_DEVICE inline Float16 RoundAtRandom<Float16>(
    float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & ~kSignBit;
  const bool is_finite = magnitude < kFloatInfinity;
  // Below 2^-14 all units are 2^-24.
  const uint32_t exponent = std::max(magnitude >> 23, uint32_t{127 - 14});
  const float unit = std::bit_cast<float>((exponent - 10) << 23);
  const float one_by_unit =
      std::bit_cast<float>((2 * 127 + 10 - exponent) << 23);
  // Exact, as are both sides of the comparison.
  const float units =
      std::bit_cast<float>(is_finite ? magnitude : 0) * one_by_unit;
  const auto whole = static_cast<float>(static_cast<int32_t>(units));
  const float noise = static_cast<float>(static_cast<int32_t>(random >> 16));
  const float carry = units - whole >= 1.0f - noise * 0x1p-16f ? 1.0f : 0.0f;
  const float rounded = std::min((whole + carry) * unit, 65504.0f);
  const auto result = std::bit_cast<float>(
      is_finite ? std::bit_cast<uint32_t>(rounded) | (bits & kSignBit) : bits);
  return RoundToNearest<Float16>(result);
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FLOAT16_H_
