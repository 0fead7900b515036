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

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_CSR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_CSR_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

namespace jte {

// COO cells and row pointers: of all local devices, or a part of them.
struct CsrBuffers {
  std::span<int32_t> row_pointers;
  std::span<int32_t> embedding_ids;  // these three have one size
  std::span<int32_t> sample_ids;
  std::span<float> gains;
};

struct PartitionLimits {
  uint32_t num_scs;  // partitions
  int64_t max_ids;
  int64_t max_unique_ids;
};

// The partition of a SparseCore that has the most of something.
struct LargestPartition {
  int64_t count = 0;
  uint32_t partition = 0;

  void Record(int64_t other_count, uint32_t other_partition) {
    if (other_count > count) *this = {other_count, other_partition};
  }
};

struct FillReport {
  LargestPartition ids;
  LargestPartition unique_ids;
  int64_t required_cells = 0;  // had nothing been dropped
  int64_t dropped_id_count = 0;
};

// `elements` ascend by partition; equal ones are neighbours. The spans of
// `region` are those of one SparseCore; its cells are a multiple of 8.
FillReport FillCsr(std::span<const uint64_t> elements, const SortKey& sort_key,
                   const GainSource& gains, const PartitionLimits& limits,
                   const CsrBuffers& region, PartitionMaxima maxima);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_CSR_H_
