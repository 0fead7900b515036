// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The sum of the squares of a row, in an order that vectorizes.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_SUM_OF_SQUARES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_SUM_OF_SQUARES_H_

#include <cstdint>

namespace jte::kernels {

// Sixteen sums, of every sixteenth square, then their sum in pairs: the same
// bits with every instruction set, and a smaller error than from left to right.
[[gnu::always_inline]] inline float SumOfSquares(const float* row,
                                                 int64_t dim) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    for (int k = 0; k < kLanes; ++k) sums[k] += row[d + k] * row[d + k];
  }
  for (int k = 0; d < dim; ++d, ++k) sums[k] += row[d] * row[d];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_SUM_OF_SQUARES_H_
