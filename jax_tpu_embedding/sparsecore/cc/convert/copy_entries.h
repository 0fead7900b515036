// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Entries of one partition to cells.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COPY_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COPY_ENTRIES_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/entry_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

struct CopiedEntries {
  int64_t size = 0;      // entries
  int64_t num_rows = 0;  // that begin among them
};

// Copies the entries of `block` from `from` on that belong to `partition`, to
// the cells from `begin` on; those that have no cell are counted only. May
// write any cells after them.
CopiedEntries CopyEntries(const EntryBlock& block, int64_t from,
                          const SortKey& sort_key, uint32_t partition,
                          const CsrBuffers& cells, int64_t begin);

// The same for any machine.
CopiedEntries CopyEntriesPortably(const EntryBlock& block, int64_t from,
                                  const SortKey& sort_key, uint32_t partition,
                                  const CsrBuffers& cells, int64_t begin);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COPY_ENTRIES_H_
