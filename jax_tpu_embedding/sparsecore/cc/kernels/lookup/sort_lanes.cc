// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sort_lanes.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte::kernels {
namespace {

// Sorts the n numbers of every lane; number i of lane k is values[i, k].
template <typename T>
[[gnu::always_inline]] inline void SortLanesOf(T* values, int64_t n) {
  if (n < 2) return;
  const int64_t top = int64_t{1}
                      << (std::bit_width(static_cast<uint64_t>(n - 1)) - 1);
  for (int64_t p = top; p > 0; p /= 2) {
    int64_t distance = p;
    int64_t r = 0;
    for (int64_t q = top;; q /= 2) {
      for (int64_t i = 0; i + distance < n; ++i) {
        if ((i & p) != r) continue;
        T* __restrict low = values + i * kLanes;
        T* __restrict high = values + (i + distance) * kLanes;
        for (int64_t k = 0; k < kLanes; ++k) {
          const T a = low[k];
          const T b = high[k];
          low[k] = std::min(a, b);
          high[k] = std::max(a, b);
        }
      }
      if (q == p) break;
      distance = q - p;
      r = p;
    }
  }
}

}  // namespace

JTE_VECTOR_CLONES
void SortLanes(uint32_t* values, int64_t n) { SortLanesOf(values, n); }
JTE_VECTOR_CLONES
void SortLanes(int64_t* values, int64_t n) { SortLanesOf(values, n); }

// Which lanes have a number twice, of n sorted ones.
JTE_VECTOR_CLONES
void FindRepeats(const uint32_t* values, int64_t n, uint32_t* repeats) {
  uint32_t found[kLanes] = {};
  for (int64_t i = 1; i < n; ++i) {
    for (int64_t k = 0; k < kLanes; ++k) {
      found[k] |= values[i * kLanes + k] == values[(i - 1) * kLanes + k];
    }
  }
  std::copy_n(found, kLanes, repeats);
}

}  // namespace jte::kernels
