// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/copy_entries.h"

#include <algorithm>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jte {
namespace {

// Cells that are written together, whether there is an entry for each or not.
constexpr int64_t kLanes = 16;
static_assert(kLanes <= EntryBlock::kSlack);

[[gnu::always_inline]] inline void CopyCells(const EntryBlock& block,
                                             int64_t from, int64_t n,
                                             uint32_t row_mask,
                                             const CsrBuffers& cells,
                                             int64_t to) {
  const uint32_t* const keys = block.keys() + from;
  int32_t* const embedding_ids = cells.embedding_ids.data() + to;
  for (int64_t i = 0; i < n; ++i) {
    embedding_ids[i] = static_cast<int32_t>(keys[i] & row_mask);
  }
  std::copy_n(block.samples.data() + from, n, cells.sample_ids.data() + to);
  std::copy_n(block.gains.data() + from, n, cells.gains.data() + to);
}

#if defined(__x86_64__)

[[gnu::target("avx512f,popcnt")]] CopiedEntries CopyInVectors(
    const EntryBlock& block, int64_t from, const SortKey& sort_key,
    uint32_t partition, const CsrBuffers& cells, int64_t begin) {
  const auto num_cells = static_cast<int64_t>(cells.gains.size());
  const auto bits = [](uint32_t word) { return static_cast<int32_t>(word); };
  const __m512i row_mask = _mm512_set1_epi32(bits(sort_key.row_mask()));
  const __m512i partition_mask = _mm512_set1_epi32(bits(~sort_key.row_mask()));
  const __m512i first_key = _mm512_set1_epi32(bits(sort_key.Key(partition, 0)));
  CopiedEntries copied;
  int64_t size = kLanes;
  while (size == kLanes) {
    const __m512i keys = _mm512_loadu_si512(block.keys() + from);
    const __m512i before = _mm512_loadu_si512(block.keys() + from - 1);
    const __mmask16 belong = _mm512_cmpeq_epi32_mask(
        _mm512_and_si512(keys, partition_mask), first_key);
    const __mmask16 begin_row =
        _mm512_mask_cmpneq_epi32_mask(belong, keys, before);
    size = __builtin_popcount(belong);
    copied.num_rows += __builtin_popcount(begin_row);
    const int64_t room = std::clamp<int64_t>(num_cells - begin, 0, kLanes);
    const auto exist = static_cast<__mmask16>((uint32_t{1} << room) - 1);
    const int64_t to = std::min(begin, num_cells);
    _mm512_mask_storeu_epi32(cells.embedding_ids.data() + to, exist,
                             _mm512_and_si512(keys, row_mask));
    _mm512_mask_storeu_epi32(cells.sample_ids.data() + to, exist,
                             _mm512_loadu_si512(block.samples.data() + from));
    _mm512_mask_storeu_ps(cells.gains.data() + to, exist,
                          _mm512_loadu_ps(block.gains.data() + from));
    from += size;
    begin += size;
    copied.size += size;
  }
  return copied;
}

#endif  // defined(__x86_64__)

}  // namespace

JTE_VECTOR_CLONES
CopiedEntries CopyEntriesPortably(const EntryBlock& block, int64_t from,
                                  const SortKey& sort_key, uint32_t partition,
                                  const CsrBuffers& cells, int64_t begin) {
  const SortKey key = sort_key;
  const auto num_cells = static_cast<int64_t>(cells.gains.size());
  CopiedEntries copied;
  int64_t size = kLanes;
  while (size == kLanes) {
    const uint32_t* const keys = block.keys() + from;
    if (key.PartitionOfKey(keys[kLanes - 1]) == partition) {
      int32_t num_rows = 0;
#pragma GCC unroll 1
      for (int64_t i = 0; i < kLanes; ++i) num_rows += keys[i] != keys[i - 1];
      copied.num_rows += num_rows;
    } else {
      for (size = 0; key.PartitionOfKey(keys[size]) == partition; ++size) {
        copied.num_rows += keys[size] != keys[size - 1];
      }
    }
    if (begin + kLanes <= num_cells) {
      CopyCells(block, from, kLanes, key.row_mask(), cells, begin);
    } else if (begin < num_cells) {
      CopyCells(block, from, std::min(size, num_cells - begin), key.row_mask(),
                cells, begin);
    }
    from += size;
    begin += size;
    copied.size += size;
  }
  return copied;
}

CopiedEntries CopyEntries(const EntryBlock& block, int64_t from,
                          const SortKey& sort_key, uint32_t partition,
                          const CsrBuffers& cells, int64_t begin) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    return CopyInVectors(block, from, sort_key, partition, cells, begin);
  }
#endif
  return CopyEntriesPortably(block, from, sort_key, partition, cells, begin);
}

}  // namespace jte
