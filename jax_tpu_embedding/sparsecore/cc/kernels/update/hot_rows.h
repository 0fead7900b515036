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
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/long_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

// Half or twice as many change an update by 1%.
inline constexpr int64_t kMinHotEntries = 64;

// A part of a second-level cache that leaves most of it to the sums, and to the
// other thread of the core.
inline constexpr int64_t kSampleBlockBytes = int64_t{1} << 18;

// Whether SumHotRows is faster than SumRows for rows with many entries.
inline bool HotRowsPay(const ActivationGradient& gradient,
                       int64_t num_samples) {
  const int64_t bytes = num_samples * gradient.dim * sizeof(float);
  return gradient.has_one_source() && bytes >= 4 * kSampleBlockBytes;
}

// The rows with kMinHotEntries or more of the `num_entries` entries.
template <typename Order>
std::vector<EntryRange> FindHotRows(const Order& order, int64_t num_entries) {
  std::vector<EntryRange> found;
  for (int64_t begin = 0; begin < num_entries; begin = found.back().end) {
    found.push_back(NextLongRow(order, begin, num_entries, kMinHotEntries));
  }
  if (!found.empty() && found.back().begin == num_entries) found.pop_back();
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
  // Of the terms since the last multiple of kTermsPerBlock.
  std::vector<float> of_blocks(rows.size() * dim, 0.0f);
  std::vector<int64_t> next;
  for (const EntryRange& row : rows) next.push_back(row.begin);
  for (int64_t first = 0; first < num_samples; first += block_size) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& [begin, end] = rows[r];
      const auto of_block = std::span(of_blocks).subspan(r * dim, dim);
      while (next[r] < end) {
        const int64_t place = (next[r] - begin) % kTermsPerBlock;
        const int64_t block_end =
            std::min(next[r] - place + kTermsPerBlock, end);
        next[r] = AddTerms(order, next[r], block_end, gradient,
                           first + block_size, of_block.data());
        if (next[r] < block_end) break;
        MoveSum(of_block, sums.data() + r * dim);
      }
    }
  }
  return sums;
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_HOT_ROWS_H_
