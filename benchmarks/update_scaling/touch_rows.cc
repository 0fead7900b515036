// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The least that an update has to move: reads a row of the gradient per entry,
// reads and writes a row of each table per entry, in the order of the buffers,
// with software prefetch, on several threads, and computes next to nothing.
// What it takes is the physical limit that the update is compared with.
//
// update_scaling.py calls it through ctypes.

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kPrefetchDistance = 32;  // entries
constexpr int64_t kCacheLineFloats = 16;

void TouchRange(float* const* tables, int64_t num_tables, const float* gradient,
                const int32_t* rows, const int32_t* samples, int64_t begin,
                int64_t end, int64_t dim) {
  for (int64_t i = begin; i < end; ++i) {
    if (const int64_t next = i + kPrefetchDistance; next < end) {
      for (int64_t d = 0; d < dim; d += kCacheLineFloats) {
        __builtin_prefetch(gradient + samples[next] * dim + d, 0);
        for (int64_t k = 0; k < num_tables; ++k) {
          __builtin_prefetch(tables[k] + rows[next] * dim + d, 1);
        }
      }
    }
    const float* __restrict grad = gradient + samples[i] * dim;
    for (int64_t k = 0; k < num_tables; ++k) {
      float* __restrict row = tables[k] + rows[i] * dim;
      for (int64_t d = 0; d < dim; ++d) row[d] += 0.0f * grad[d];
    }
  }
}

}  // namespace

// Adds zero to every row of `num_tables` tables that `rows` names.
extern "C" void TouchRows(float* const* tables, int64_t num_tables,
                          const float* gradient, const int32_t* rows,
                          const int32_t* samples, int64_t num_entries,
                          int64_t dim, int64_t num_threads) {
  std::vector<std::jthread> threads;
  for (int64_t t = 1; t < num_threads; ++t) {
    threads.emplace_back(TouchRange, tables, num_tables, gradient, rows,
                         samples, num_entries * t / num_threads,
                         num_entries * (t + 1) / num_threads, dim);
  }
  TouchRange(tables, num_tables, gradient, rows, samples, 0,
             num_entries / std::max<int64_t>(num_threads, 1), dim);
}
