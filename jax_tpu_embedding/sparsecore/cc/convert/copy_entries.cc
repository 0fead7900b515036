// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/copy_entries.h"

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

JTE_VECTOR_CLONES
CopiedEntries CopyEntries(std::span<const uint64_t> elements, uint32_t row_mask,
                          int32_t* embedding_ids, int32_t* sample_ids) {
  CopiedEntries copied;
  const int64_t size = std::ssize(elements) - 1;
  for (; copied.size + kEntriesPerBlock <= size;
       copied.size += kEntriesPerBlock) {
    const uint64_t* const before = elements.data() + copied.size;
    const uint64_t* const block = before + 1;
    uint32_t merges = 0;
    uint32_t num_rows = 0;
    // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
    for (int64_t i = 0; i < kEntriesPerBlock; ++i) {
      merges |= block[i] == before[i];
      num_rows += SortKey::KeyOf(block[i]) != SortKey::KeyOf(before[i]);
    }
    if (merges != 0) break;
#pragma GCC unroll 1
    for (int64_t i = 0; i < kEntriesPerBlock; ++i) {
      embedding_ids[copied.size + i] =
          static_cast<int32_t>(SortKey::KeyOf(block[i]) & row_mask);
      sample_ids[copied.size + i] =
          static_cast<int32_t>(SortKey::PayloadOf(block[i]));
    }
    copied.num_rows += num_rows;
  }
  return copied;
}

}  // namespace jte
