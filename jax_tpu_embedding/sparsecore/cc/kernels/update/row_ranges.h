// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Cutting entries that are ordered by row into ranges for tasks, between rows.
//
//   const int64_t begin = RowStart(order, i, num_entries);
//
// is the first entry of a row, so that ranges that are cut there share no row.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_RANGES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_RANGES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/merge_runs.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/long_rows.h"

namespace jte::kernels {

// Small enough to share out skewed batches, large enough that taking a task and
// its first, unhidden memory accesses do not count.
inline constexpr int64_t kEntriesPerTask = 4096;

// The first entry from `i` on that is the first of its row, or `num_entries`.
template <typename Order>
int64_t RowStart(const Order& order, int64_t i, int64_t num_entries) {
  if (i == 0 || i >= num_entries) return std::min(i, num_entries);
  return RowEnd(order, i - 1, num_entries);
}

// Cuts `rows` into `num_parts` with about as many entries each; no rows have no
// parts.
inline std::vector<std::span<const EntryRange>> CutByEntries(
    std::span<const EntryRange> rows, int64_t num_parts) {
  if (rows.empty()) return {};
  int64_t total = 0;
  for (const EntryRange& row : rows) total += row.end - row.begin;
  std::vector<std::span<const EntryRange>> parts;
  int64_t entries = 0;  // up to the end of the part
  size_t first = 0;
  for (int64_t part = 1; part <= num_parts; ++part) {
    size_t last = first;
    while (last < rows.size() && entries < total * part / num_parts) {
      entries += rows[last].end - rows[last].begin;
      ++last;
    }
    parts.push_back(rows.subspan(first, last - first));
    first = last;
  }
  return parts;
}

// Whether the entries, which have been checked, are one partition in ascending
// order of ids.
inline bool IsOrdered(const CooBuffers& buffers,
                      std::span<const Partition> partitions) {
  if (partitions.size() != 1) return false;
  const Partition& partition = partitions.front();
  if (partition.first_row != 0 || partition.first_sample != 0) return false;
  return IsAscending(MakeRun(buffers, partition));
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_RANGES_H_
