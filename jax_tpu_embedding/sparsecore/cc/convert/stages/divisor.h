// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Division of many numbers by one divisor that is known only at run time, as a
// multiplication and a shift.
//
//   Divisor by_three(3);
//   by_three.Quotient(100);  // 33
//
// With l = ceil(log2(d)) and m = ceil(2^(31 + l) / d), floor(n / d) is
// floor(n * m / 2^(31 + l)) for every n < 2^31. m < 2^32, because
// 2^(l - 1) < d < 2^31, so vector instructions can multiply n and m. Source:
// Granlund and Montgomery, "Division by Invariant Integers using
// Multiplication", PLDI 1994, theorem 4.2 with N = 31.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_DIVISOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_DIVISOR_H_

#include <bit>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte::convert {

class Divisor {
 public:
  // 1 <= d < 2^31.
  explicit constexpr Divisor(uint32_t d)
      : shift_(31 + std::bit_width(d - 1)),
        multiplier_(static_cast<uint32_t>(
            CeilDiv<uint64_t>(uint64_t{1} << shift_, d))) {}

  // floor(n / d), for n < 2^31.
  constexpr uint32_t Quotient(uint32_t n) const {
    return static_cast<uint32_t>((n * uint64_t{multiplier_}) >> shift_);
  }

 private:
  int shift_;
  uint32_t multiplier_;
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_DIVISOR_H_
