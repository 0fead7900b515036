// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#ifndef BENCHMARKS_LOOKUP_LIMIT_KERNELS_H_
#define BENCHMARKS_LOOKUP_LIMIT_KERNELS_H_

#include <cstdint>

// out[num_samples, dim] = sums of weights[num_samples, valency] * table[ids].
// width: how many columns of 128 to sum at once, 64 or all. samples_at_once: of
// how many samples to read the ids, and ask for the first rows, before any row
// is added; 0: of none.
extern "C" void LookUp(const float* table, const int32_t* ids,
                       const float* weights, float* out, int64_t num_samples,
                       int64_t valency, int64_t dim, int64_t width,
                       int64_t ahead, int64_t samples_at_once,
                       bool to_first_level, int64_t num_threads);

// Steps the rows of entries, which are sorted by row, by gradient[samples,
// dim]. Returns whether it serves so many columns.
extern "C" bool UpdateRows(float* table, float* slot, const int32_t* rows,
                           const int32_t* samples, const float* gains,
                           const float* gradient, int64_t num_entries,
                           int64_t dim, int64_t width, int64_t rows_ahead,
                           int64_t samples_ahead, bool to_first_level,
                           int64_t num_threads);

#endif  // BENCHMARKS_LOOKUP_LIMIT_KERNELS_H_
