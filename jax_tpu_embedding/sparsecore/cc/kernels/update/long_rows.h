// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of a table with many entries, among entries that are grouped by row.
//
//   for (EntryRange row = NextLongRow(order, 0, n, 513); row.begin < n;
//        row = NextLongRow(order, row.end, n, 513)) {
//     // the entries [row.begin, row.end), 513 or more
//   }
//
// Order: SortedOrder or PartitionOrder (sum_rows.h). Threading: free functions
// over the caller's memory.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_LONG_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_LONG_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <ranges>

namespace jte::kernels {

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

// The first row with `min_size` or more entries, of those in [begin, end);
// {end, end} if there is none. Requires: min_size >= 2.
//
// Complexity: entries up to it / min_size, and a logarithm per row with more
// than half as many.
template <typename Order>
EntryRange NextLongRow(const Order& order, int64_t begin, int64_t end,
                       int64_t min_size) {
  // Two probes or more are in each such row.
  const int64_t step = min_size / 2;
  for (int64_t i = begin + step; i < end; i += step) {
    const int32_t row = order.row(i);
    if (order.row(i - step) != row) continue;
    // Of an earlier probe too, it would have been found there.
    const auto before =
        std::views::iota(std::max(begin, i - 2 * step), i - step);
    const auto is_of_another = [&order, row](int64_t k) {
      return order.row(k) != row;
    };
    const int64_t first = *std::ranges::partition_point(before, is_of_another);
    const int64_t last = first + min_size - 1;
    if (last < end && order.row(last) == row) {
      return {first, RowEnd(order, last, end)};
    }
  }
  return {end, end};
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_LONG_ROWS_H_
