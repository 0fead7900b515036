// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The update on a CPU: sum the gradient of each referenced row, step the
// optimizer once per row, write it back in place.
//
//   gradient of a row = sum over source SparseCores of
//                       sum over entries of gain * activation_gradient[sample]
//
// A partition is ordered by row, as the converter writes it. Tasks are ranges
// of rows: of one partition they read the entries where they are, those of
// several they merge (merge_runs.h). A task sums the gradients of a few rows
// into a buffer, and steps those (step_rows.h). Entries in any other order are
// sorted first, all at once.
//
// Requires: `buffers` fit `geometry` in size; the table has S * rows_per_shard
//   rows, `activation_gradient` S * batch_size_per_sc rows, of `dim` values
//   each; no two of the arrays overlap.
// Guarantees: rows without an entry keep every bit, slots too; a row whose
//   gradient is zero is stepped; same bits for any executor.
// Errors: InvalidArgument, with nothing written, for an unknown rule, a wrong
//   number of slots or hyperparameters, a slot of a wrong size, stochastic
//   rounding to float32, or a row pointer, an embedding id or a sample id out
//   of range.
// Complexity: O(entries * dim), whatever the table's size.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_APPLY_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_APPLY_ROWS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"

namespace jte::kernels {

// What happens to a row, beside its gradient.
struct Optimizer {
  std::string_view rule;                   // one of step_rule.cc
  std::span<const float> hyperparameters;  // in the rule's order
  RowOptions options = {};
  std::optional<StochasticRounding> rounding = {};  // to nearest without it
};

// The table and its slots; updated in place.
struct Tables {
  TableValues table;
  std::span<const std::span<float>> slots;  // in the rule's order
};

Result<void> ApplyRows(const CooBuffers& buffers, const CooGeometry& geometry,
                       std::span<const float> activation_gradient, int64_t dim,
                       const Optimizer& optimizer, const Tables& tables,
                       Executor& executor);

// What one of several devices whose memory is read has.
struct DeviceBatch {
  CooBuffers buffers;
  const float* activation_gradient;  // geometry.batch_size() rows
};

// The same on device `device` of several, for the rows that it has: `batches`
// has the batch of each, and `geometry.num_devices` is their number. The
// entries must have been checked (CheckEntries).
Result<void> ApplyBatches(std::span<const DeviceBatch> batches, int64_t device,
                          const CooGeometry& geometry, int64_t dim,
                          const Optimizer& optimizer, const Tables& tables,
                          Executor& executor);

// What a device has sent. Numbers that are no rows of the table have none.
struct ReceivedGradients {
  std::span<const int32_t> rows;
  const float* gradients;  // of `dim` values, one after the other
};

// The update of a table of `num_rows` by gradients that were summed before they
// were sent (messages.h), as many by each device. Those of a row are added in
// the order in which they are given.
Result<void> ApplyReceived(std::span<const ReceivedGradients> received,
                           int64_t num_rows, int64_t dim,
                           const Optimizer& optimizer, const Tables& tables,
                           Executor& executor);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_APPLY_ROWS_H_
