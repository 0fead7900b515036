// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The sum of the squares of a row that a tile has, with the bits of
// kernels/update/sum_of_squares.h: sixteen sums, of every sixteenth square, and
// then their sum in pairs.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SQUARES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SQUARES_H_

#include "jax_tpu_embedding/sparsecore/cc/gpu/row_sums.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

// Of windows of a row, in their order.
template <int kSize, int kChunks>
class SumOfSquares {
 public:
  // All threads of the tile must call it. `window` is zero behind the row's
  // end.
  JTE_DEVICE void Add(const Thread& thread, int lanes,
                      const Sums<kSize, kChunks>& window) {
    const int lane = thread.index() % lanes;
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      // Threads with equal lane % kSumLanes have columns for the same sums, and
      // add them in the order of columns.
      for (int first = 0; first < lanes; first += kSumLanes) {
        const int source = lanes < kSumLanes ? lane : first + lane % kSumLanes;
        JTE_UNROLL
        for (int d = 0; d < kSize; ++d) {
          const float x = window.chunk[c].v[d];
          sums_[d] += thread.Shuffle(x * x, source, lanes);
        }
      }
    }
  }

  // All threads of the tile must call it, once; all get the result.
  JTE_DEVICE float Total(const Thread& thread, int lanes) {
    const int lane = thread.index() % lanes;
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      // Sums that no thread has are zero.
      const bool has_other = lane + half < lanes;
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) {
        const float other =
            thread.Shuffle(sums_[d], has_other ? lane + half : lane, lanes);
        sums_[d] += has_other ? other : 0.0f;
      }
    }
    JTE_UNROLL
    for (int half = kSize / 2; half > 0; half /= 2) {
      JTE_UNROLL
      for (int d = 0; d < half; ++d) sums_[d] += sums_[d + half];
    }
    return thread.Shuffle(sums_[0], 0, lanes);
  }

 private:
  static constexpr int kSumLanes = 16 / kSize;  // that have the sixteen sums
  float sums_[kSize] = {};
};

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SQUARES_H_
