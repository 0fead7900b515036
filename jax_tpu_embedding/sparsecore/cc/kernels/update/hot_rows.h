// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of a table that very many samples name.
//
// The samples of one such row are spread over the whole batch. Row by row, each
// reads the whole gradient of the activations, and where that is larger than a
// second-level cache, the cache has none of it when the next row begins. So the
// sums of all of them grow side by side: through the samples of a block, which
// stay in the cache, then through those of the next.
//
// 16384 samples x 20 ids, Zipf 1.05, 64 columns (4 MiB): half of the entries
// are of 400 such rows, and an update with SGD takes 0.87 of the time.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_HOT_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_HOT_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

// Half or twice as many change an update by 1%.
inline constexpr int64_t kMinHotEntries = 64;

// A part of a second-level cache that leaves most of it to the sums, and to the
// other thread of the core.
inline constexpr int64_t kSampleBlockBytes = int64_t{1} << 18;

// The entries [begin, end) of a row.
struct EntryRange {
  int64_t begin;
  int64_t end;
};

// One past the entries of the row that entry `i` is of.
template <typename Order>
int64_t RowEnd(const Order& order, int64_t i, int64_t num_entries) {
  const auto rest = std::views::iota(i, num_entries);
  const auto is_of_row = [&order, row = order.row(i)](int64_t k) {
    return order.row(k) == row;
  };
  return *std::ranges::partition_point(rest, is_of_row);
}

// Whether SumHotRows is faster than SumRows for rows with many entries.
inline bool HotRowsPay(const ActivationGradient& gradient,
                       int64_t num_samples) {
  const int64_t bytes = num_samples * gradient.dim * sizeof(float);
  return gradient.has_one_source() && bytes >= 4 * kSampleBlockBytes;
}

// The rows with kMinHotEntries or more of the `num_entries` entries.
//
// Complexity: num_entries / kMinHotEntries, and log(num_entries) per row.
template <typename Order>
std::vector<EntryRange> FindHotRows(const Order& order, int64_t num_entries) {
  // Two probes or more are in each such row.
  constexpr int64_t kStep = kMinHotEntries / 2;
  std::vector<EntryRange> found;
  int64_t begin = 0;  // no hot row has an entry in [its end, begin)
  for (int64_t i = kStep; i < num_entries; i += kStep) {
    const int32_t row = order.row(i);
    if (i < begin || order.row(i - kStep) != row) continue;
    begin = std::max(begin, i - 2 * kStep);
    const auto before = std::views::iota(begin, i);
    const auto is_less = [&order, row](int64_t k) {
      return order.row(k) < row;
    };
    begin = *std::ranges::partition_point(before, is_less);
    const int64_t end = RowEnd(order, i, num_entries);
    if (end - begin >= kMinHotEntries) found.push_back({begin, end});
    begin = end;
  }
  return found;
}

// The gradients [size of `rows`, dim] of rows that FindHotRows found; the
// bits are those of SumRows.
template <typename Order>
std::vector<float> SumHotRows(const Order& order,
                              std::span<const EntryRange> rows,
                              const ActivationGradient& gradient,
                              int64_t num_samples) {
  const int64_t dim = gradient.dim;
  const int64_t block_size = std::max<int64_t>(
      kSampleBlockBytes / (dim * static_cast<int64_t>(sizeof(float))), 1);
  std::vector<float> sums(rows.size() * dim, 0.0f);
  std::vector<int64_t> next;
  for (const EntryRange& row : rows) next.push_back(row.begin);
  for (int64_t first = 0; first < num_samples; first += block_size) {
    for (size_t r = 0; r < rows.size(); ++r) {
      next[r] = AddTerms(order, next[r], rows[r].end, gradient,
                         first + block_size, sums.data() + r * dim);
    }
  }
  return sums;
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_HOT_ROWS_H_
