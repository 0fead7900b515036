// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The lookup on a CPU: gather rows, weigh them, pool them per sample.
//
//   activations[sample, :] = sum over the sample's entries of gain * row
//
// in float32, whatever the type of the table; rows of codes (code_words.h) are
// decoded first.
//
// Entries are ordered by row in the buffers. They are first sorted by sample
// (sort_by_sample.h); then each task adds up the rows of some samples in
// registers, with prefetch (pool_samples.h).
//
// Requires: `buffers` fit `geometry` in size. `activations` holds
//   S * batch_size_per_sc rows of `dim` floats, `table` S * rows_per_shard rows
//   of as many values or codes. A quantization has two buckets or more, and a
//   minimum below its maximum.
// Guarantees: every element of `activations` is written; samples without
//   entries are zero. The terms of a sample are added in the order of the
//   buffers, so the result has the same bits for any executor.
// Errors: InvalidArgument, nothing useful in `activations`, if a row pointer,
//   an embedding id or a sample id is out of range, or there are more entries
//   than 32 bits can count.
// Complexity: O(entries * dim + samples * dim), whatever the table's size.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_LOOKUP_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_LOOKUP_H_

#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

// Rows are rounded to one of `num_buckets` values from `min_value` to
// `max_value`, before they are weighed.
struct Quantization {
  double min_value;
  double max_value;
  int64_t num_buckets;
};

Result<void> Lookup(const CooBuffers& buffers, const CooGeometry& geometry,
                    LookupTable table, int64_t dim,
                    const std::optional<Quantization>& quantization,
                    std::span<float> activations, Executor& executor);

// The same on one of several devices whose memory it reads: `tables` has the
// table of each, of one type and size, and `geometry.num_devices` is their
// number. The entries must have been checked (CheckEntries).
Result<void> LookupInTables(const CooBuffers& buffers,
                            const CooGeometry& geometry,
                            std::span<const LookupTable> tables, int64_t dim,
                            const std::optional<Quantization>& quantization,
                            std::span<float> activations, Executor& executor);

// Adds to the activations of one of several devices the rows that device
// `device` has, in `table`; `buffers` are those of the former. After all
// devices in ascending order, the activations have the bits of a lookup. The
// entries must have been checked (CheckEntries).
Result<void> AddRowsOf(int64_t device, const CooBuffers& buffers,
                       const CooGeometry& geometry, LookupTable table,
                       int64_t dim,
                       const std::optional<Quantization>& quantization,
                       std::span<float> activations, Executor& executor);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_LOOKUP_H_
