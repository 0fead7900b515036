// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradients of rows as values: what an update sums before it steps.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SUM_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SUM_ROWS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

// Places, each with a row and its gradient. Those without have kPaddingId and
// zeros.
struct RowSums {
  // Null: the rows follow each other, in their order. If there are more than
  // places, all sums are NaN. Else the place of a row is its number, and
  // `requests` has kNoRow where no row is (pack_messages.h).
  const int32_t* requests;
  int64_t num_places;
  int32_t* rows;  // [num_places]
  float* sums;    // [num_places, dim]
};

// block_sums: f32[MaxRowBlocks, dim], overwritten. Returns null, or the message
// of an error.
const char* SumRows(Stream stream, const RowTerms& terms,
                    int64_t max_row_blocks, float* block_sums,
                    const RowSums& results);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SUM_ROWS_H_
