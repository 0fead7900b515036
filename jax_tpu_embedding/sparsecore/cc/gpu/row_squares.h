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
    if constexpr (kHasWindows<kSize>) {
      AddWindow(thread, lanes, window, sums_);
    } else if (lanes == kWideLanes) {
      total_ = TotalOfWide(thread, window);
    } else {
      float sums[kSize] = {};
      AddWindow(thread, lanes, window, sums);
      total_ = TotalOf(thread, lanes, sums);
    }
  }

  // All threads of the tile must call it, once; all get the result.
  JTE_DEVICE float Total(const Thread& thread, int lanes) {
    if constexpr (kHasWindows<kSize>) return TotalOf(thread, lanes, sums_);
    return total_;
  }

 private:
  static constexpr int kSumLanes = 16 / kSize;  // that have the sixteen sums

  static JTE_DEVICE void AddWindow(const Thread& thread, int lanes,
                                   const Sums<kSize, kChunks>& window,
                                   float (&sums)[kSize]) {
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
          sums[d] += thread.Shuffle(x * x, source, lanes);
        }
      }
    }
  }

  static JTE_DEVICE float TotalOf(const Thread& thread, int lanes,
                                  float (&sums)[kSize]) {
    const int lane = thread.index() % lanes;
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      // Sums that no thread has are zero.
      const bool has_other = lane + half < lanes;
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) {
        const float other =
            thread.Shuffle(sums[d], has_other ? lane + half : lane, lanes);
        sums[d] += has_other ? other : 0.0f;
      }
    }
    JTE_UNROLL
    for (int half = kSize / 2; half > 0; half /= 2) {
      JTE_UNROLL
      for (int d = 0; d < half; ++d) sums[d] += sums[d + half];
    }
    return thread.Shuffle(sums[0], 0, lanes);
  }

  // --- Of 128 columns in a chunk: the same by a quarter of the exchanges ---

  static constexpr int kWideLanes = 32;

  // Thread 4 * q + r has the columns 16 * q + 4 * r + d. The threads of four q
  // (0 to 3, and 4 to 7) and one r exchange them, so that each has those of one
  // d, q % 4, which are of one sum: those of columns up to 63 in the lower half
  // of threads, of the others in the upper half, which goes on with the sums of
  // the lower one. So the upper half has the sixteen sums.
  static JTE_DEVICE float TotalOfWide(const Thread& thread,
                                      const Sums<kSize, kChunks>& window) {
    const bool is_upper = (thread.index() & 16) != 0;
    float sum = 0.0f;
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      auto x = window.chunk[c];
      Exchange<4>(thread, x.v[0], x.v[1]);
      Exchange<4>(thread, x.v[2], x.v[3]);
      Exchange<8>(thread, x.v[0], x.v[2]);
      Exchange<8>(thread, x.v[1], x.v[3]);
      // The lower half goes on where the upper one was with the last chunk.
      if (c > 0) sum = thread.ShuffleXor(sum, 16, kWideLanes);
      sum = AddSquares(sum, x);
      const float of_other = thread.ShuffleXor(sum, 16, kWideLanes);
      if (is_upper) sum = AddSquares(of_other, x);
    }
    // The pairs are those of TotalOf: of r first, then of d.
    constexpr int kDistances[] = {2, 1, 8, 4};
    JTE_UNROLL
    for (int k = 0; k < 4; ++k) {
      sum += thread.ShuffleXor(sum, kDistances[k], kWideLanes);
    }
    return thread.Shuffle(sum, 16, kWideLanes);
  }

  // Of two threads that are kDistance apart, the lower one gives its `high` for
  // the `low` of the upper one.
  template <int kDistance>
  static JTE_DEVICE void Exchange(const Thread& thread, float& low,
                                  float& high) {
    const bool is_upper = (thread.index() & kDistance) != 0;
    const float received =
        thread.ShuffleXor(is_upper ? low : high, kDistance, kWideLanes);
    low = is_upper ? received : low;
    high = is_upper ? high : received;
  }

  static JTE_DEVICE float AddSquares(float sum, const Vector<float, kSize>& x) {
    JTE_UNROLL
    for (int d = 0; d < kSize; ++d) sum += x.v[d] * x.v[d];
    return sum;
  }

  float sums_[kSize] = {};  // of rows with several windows
  float total_ = 0.0f;      // of others
};

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SQUARES_H_
