// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradients of rows as values: what an update (apply_rows.h) sums before it
// steps the optimizer, for those who have something to do in between.
//
//   GradientsOfRows   of the rows that a batch names
//   SumOfRows         of rows that come with gradients, once or several times
//
// Both write the distinct rows, ascending, and the sum for each; then
// kPaddingId, with zeros. Every element of the results is written.
//
// Requires: `buffers` fit `geometry` in size; `activation_gradient` has
//   S * batch_size_per_sc rows of `dim` values; there is a term, and dim >= 1;
//   results overlap nothing.
// Guarantees: the sums have the bits that an update sums; those of SumOfRows
//   are added in the order in which they come. Same bits for any executor.
// Errors: InvalidArgument, with nothing written, if there are more distinct
//   rows than results have room for, or for a row pointer, an embedding id or a
//   sample id out of range.
// Complexity: O(entries * dim) and the size of the results.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_GRADIENTS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_GRADIENTS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::kernels {

// Rows and `dim` values for each.
template <typename Row, typename Value>
struct RowsAndValues {
  std::span<Row> rows;      // n
  std::span<Value> values;  // n * dim
};
using SparseRows = RowsAndValues<int32_t, float>;
using ConstSparseRows = RowsAndValues<const int32_t, const float>;

// Rows are those of the device's table.
Result<void> GradientsOfRows(const CooBuffers& buffers,
                             const CooGeometry& geometry,
                             std::span<const float> activation_gradient,
                             int64_t dim, const SparseRows& results,
                             Executor& executor);

// Where `rows` of a term has kPaddingId there is none, whatever `values` has
// there. Rows may be any other numbers.
Result<void> SumOfRows(std::span<const ConstSparseRows> terms, int64_t dim,
                       const SparseRows& results, Executor& executor);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_GRADIENTS_H_
