// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the entries are in the COO buffers of one stack on one device.
//
// Row pointers alone say which cells hold entries (layout/csr_layout.h); every
// other cell may hold anything and is never read. A kernel first reads the
// partitions, then checks the entries it is about to use as addresses, so that
// corrupt buffers give an error and never an access out of bounds.
//
// Threading: free functions over the caller's memory. Complexity: partitions
// O(row pointers), checks O(entries).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_PARTITIONS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_PARTITIONS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::kernels {

// The buffers as the converter wrote them. The three cell arrays have one size.
struct CooBuffers {
  std::span<const int32_t> row_pointers;
  std::span<const int32_t> embedding_ids;
  std::span<const int32_t> sample_ids;
  std::span<const float> gains;
};

// What the numbers in the buffers refer to.
struct CooGeometry {
  int64_t num_sc_per_device;  // S
  int64_t rows_per_shard;     // embedding ids are in [0, rows_per_shard)
  int64_t batch_size_per_sc;  // sample ids are in [0, batch_size_per_sc)
  bool enable_minibatching;   // which of the two layouts
  int64_t num_minibatches;    // 1 without minibatching
  int64_t num_devices = 1;    // G; the targets are G * S SparseCores

  int64_t rows_per_device() const { return num_sc_per_device * rows_per_shard; }
  int64_t batch_size() const { return num_sc_per_device * batch_size_per_sc; }
};

// Ids sent from one source SparseCore to one target, in one minibatch.
struct Partition {
  int64_t begin;  // cells [begin, end) of the device's buffers
  int64_t end;
  int64_t first_row;     // of the target's shard, in the device's table
  int64_t first_sample;  // of the source, in the device's batch
  int64_t device = 0;    // that has the target's shard
};

// The non-empty partitions, ordered by source, minibatch, target.
//
// InvalidArgument if the number of row pointers or minibatches does not fit the
// geometry, a row pointer is outside the buffer or before its partition, or
// those that belong to no partition say that there are more.
Result<std::vector<Partition>> ReadPartitions(const CooBuffers& buffers,
                                              const CooGeometry& geometry);

// Entries in all partitions.
int64_t CountEntries(std::span<const Partition> partitions);

// The number of ranges to cut `num_entries` into for a pass that reads them
// all.
int64_t NumChunks(int64_t num_entries, const Executor& executor);

// InvalidArgument if an embedding id or a sample id of an entry is out of
// range; the message names the first such cell.
Result<void> CheckEntries(const CooBuffers& buffers,
                          std::span<const Partition> partitions,
                          const CooGeometry& geometry, Executor& executor);

// The cells [begin, end) of a partition.
struct Piece {
  const Partition& partition;
  int64_t begin;
  int64_t end;
};

// Calls visit(piece) for the parts of the partitions that hold the entries
// [begin, end), counted over all partitions in order.
template <typename Visit>
void ForEachPiece(std::span<const Partition> partitions, int64_t begin,
                  int64_t end, Visit visit) {
  int64_t first = 0;  // entries before the partition
  for (const Partition& partition : partitions) {
    if (first >= end) return;
    const int64_t size = partition.end - partition.begin;
    const Piece piece{
        .partition = partition,
        .begin = partition.begin + std::clamp<int64_t>(begin - first, 0, size),
        .end =
            partition.end - std::clamp<int64_t>(first + size - end, 0, size)};
    if (piece.begin < piece.end) visit(piece);
    first += size;
  }
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_PARTITIONS_H_
