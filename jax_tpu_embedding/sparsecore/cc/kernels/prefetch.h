// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Software prefetch of table rows whose order the hardware cannot guess.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_PREFETCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_PREFETCH_H_

#include <algorithm>
#include <cstdint>

namespace jte {

inline constexpr int64_t kCacheLineFloats = 16;

// How many entries ahead to ask for a row of `dim` floats: 8 KiB of rows, which
// covers a memory access of 100 ns and leaves most of a first-level cache to
// the rows in use.
constexpr int64_t PrefetchDistance(int64_t dim) {
  return std::clamp<int64_t>(2048 / std::max<int64_t>(dim, 1), 4, 64);
}

// Always inline: GCC 12 takes a function that only prefetches for one without
// effect, and removes calls to it.
[[gnu::always_inline]] inline void PrefetchToRead(const float* row,
                                                  int64_t dim) {
  for (int64_t d = 0; d < dim; d += kCacheLineFloats) {
    __builtin_prefetch(row + d, /*rw=*/0);
  }
}

[[gnu::always_inline]] inline void PrefetchToWrite(const float* row,
                                                   int64_t dim) {
  for (int64_t d = 0; d < dim; d += kCacheLineFloats) {
    __builtin_prefetch(row + d, /*rw=*/1);
  }
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_PREFETCH_H_
