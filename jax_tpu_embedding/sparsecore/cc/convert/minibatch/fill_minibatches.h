// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Last stage with minibatching: the elements of one SparseCore to row pointers
// and COO cells, minibatch after minibatch.
//
//   cells of a device   | SC 0: mb 0 | mb 1 | ... | SC 1: mb 0 | ... | padding
//
// Inside of a minibatch, partitions are written as in fill_csr.h, but row
// pointers count from the first cell of the device. SparseCores are filled at
// the same time: CountCells says beforehand where each of them begins.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_FILL_MINIBATCHES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_FILL_MINIBATCHES_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_split.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"

namespace jte::convert {

// The cells of one SparseCore, with every partition of every minibatch rounded
// up to 8. `minibatches` has a bucket for each minibatch; `count_of` is one of
// the members num_ids and num_kept_ids.
int64_t CountCells(const PartitionTable& minibatches,
                   uint32_t BucketCounts::* count_of);

// `minibatches`: JoinBuckets of `table` and `split`. `cells` are those of the
// device up to the end of what this SparseCore may write; its first is `begin`.
// `row_pointers` are split.size() blocks of equal size. Returns how many ids
// were dropped.
int64_t FillMinibatches(const SortedIds& ids, const SortKey& sort_key,
                        const PartitionTable& table,
                        const PartitionTable& minibatches,
                        const MinibatchSplit& split,
                        const PartitionLimits& limits,
                        std::span<int32_t> row_pointers,
                        const CsrBuffers& cells, int64_t begin);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_FILL_MINIBATCHES_H_
