// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the gradient of a row is the sum of.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_TERMS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_TERMS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

// As RowGroups.
struct ConstRowGroups {
  const int32_t* rows;
  const int32_t* samples;
  const int32_t* starts;
  const int32_t* cells;  // or null: where they were
  const RowBlock* blocks;
  const LongRow* long_rows;
  const GroupCounts* counts;
};

// What is added: gain * gradient[sample, :].
struct RowTerms {
  ConstRowGroups groups;
  const float* cell_gains;  // null: all are 1
  const float* gradient;    // [samples, dim]
  int64_t dim;
  int64_t batch_size_per_sc;
  bool has_one_source;
  int64_t block_size;  // of long rows; 0: none is
  int64_t num_cells;

  JTE_DEVICE bool IsLong(int64_t num_entries) const {
    return block_size > 0 && num_entries > block_size;
  }
};

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_TERMS_H_
