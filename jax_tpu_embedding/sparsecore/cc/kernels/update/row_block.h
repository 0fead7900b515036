// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Some rows of a table on their way through an update.
//
// An update works on a few rows at a time: their gradients are summed into a
// buffer that stays in a first-level cache, and each thing that is done to a
// row (an option, the optimizer's step, a limit) is one pass over the block. So
// nothing has to be compiled for each combination of them, and what is not
// asked for costs nothing.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_BLOCK_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_BLOCK_H_

#include <array>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"

namespace jte::kernels {

// The arrays that an update writes rows of: the table and its slots.
struct RowArrays {
  struct Array {
    const char* data;
    int64_t row_bytes;
  };
  std::array<Array, 1 + kMaxSlots> arrays;
  int num_arrays;

  [[gnu::always_inline]] void Prefetch(int64_t row) const {
    for (int k = 0; k < num_arrays; ++k) {
      const auto [data, row_bytes] = arrays[k];
      PrefetchTableRow(data + row * row_bytes, row_bytes);
    }
  }
};

// Requires: no row twice; the arrays do not overlap.
struct RowBlock {
  int64_t num_rows;
  int64_t dim;
  float* gradients;  // [num_rows, dim]

  // Row i of the block is weights[weight_rows[i] * dim...]: in the table, or in
  // a buffer.
  float* weights;
  const int32_t* weight_rows;

  // It is slots[k][slot_rows[i] * dim...], or slots[k][slot_rows[i]] if the
  // slot has one number per row.
  std::array<float*, kMaxSlots> slots;
  const int32_t* slot_rows;

  // The rows that the next block will have: while a row is stepped, one of them
  // is prefetched. To prefetch only in the loop that sums gradients, where
  // memory is the limit already, costs 15% of an update.
  const RowArrays* arrays;
  const int32_t* next_rows;
  int64_t num_next_rows;

  float* gradient(int64_t i) const { return gradients + i * dim; }
  float* weight(int64_t i) const {
    return weights + static_cast<int64_t>(weight_rows[i]) * dim;
  }
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_BLOCK_H_
