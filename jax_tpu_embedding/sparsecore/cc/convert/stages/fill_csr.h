// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Last stage: sorted elements to row pointers and COO cells.
//
// One linear pass merges ids of the same row and sample into one entry, whose
// gain is the sum in order of occurrence; counts entries and distinct rows of
// each partition; and writes every cell of the SparseCore's region:
//
//   cells         | partition 0 | pad to 8 | partition 1 | pad to 8 | ... | pad
//   row pointers    end of 0,     end of 1, ..., rounded end of the last
//
// (cc/layout/csr_layout.h has the whole picture.) Entries beyond a limit or the
// end of the region are dropped and counted; the caller decides whether
// that is an error.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_FILL_CSR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_FILL_CSR_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

namespace jte::convert {

// A partition of a SparseCore, or with minibatches a bucket of one.
struct PartitionName {
  static constexpr int32_t kAllBuckets = -1;

  uint32_t partition = 0;
  int32_t bucket = kAllBuckets;
};

// The one that has the most of something.
struct LargestPartition {
  int64_t count = 0;
  PartitionName name;

  void Record(int64_t other_count, PartitionName other_name) {
    if (other_count > count) *this = {other_count, other_name};
  }
};

// What filling found out about the ids of one SparseCore.
struct FillReport {
  // With minibatches, set only where something was dropped.
  LargestPartition ids;
  LargestPartition unique_ids;
  int64_t required_cells = 0;  // had nothing been dropped
  int64_t dropped_id_count = 0;
};

// `elements` ascend by partition; equal ones are neighbours. The spans of
// `region` are those of one SparseCore; its cells are a multiple of 8. Sets
// `counts`.
FillReport FillCsr(std::span<const uint64_t> elements, const SortKey& sort_key,
                   const GainSource& gains, const PartitionLimits& limits,
                   const CsrBuffers& region, const PartitionCounts& counts);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_FILL_CSR_H_
