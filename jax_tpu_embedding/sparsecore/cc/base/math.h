// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Integer arithmetic for layouts. No floating point for integer facts.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_MATH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_MATH_H_

#include <concepts>

namespace jte {

// ceil(n / d) for n >= 0, d > 0.
template <std::integral T>
constexpr T CeilDiv(T n, T d) {
  return n / d + (n % d != 0);
}

// Smallest multiple of m that is >= n, for n >= 0, m > 0.
template <std::integral T>
constexpr T RoundUp(T n, T m) {
  return CeilDiv(n, m) * m;
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_MATH_H_
