// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a batch needs, measured before anything is dropped.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {

// What the N partitions of one SparseCore hold.
struct PartitionCounts {
  std::span<int32_t> ids;         // entries
  std::span<int32_t> unique_ids;  // distinct rows
};

// Per stack, for L local devices, S SparseCores per device and N in the job.
// Python: SparseDenseMatmulInputStats.
struct StackStats {
  explicit StackStats(const Topology& topology)
      : max_ids_per_partition(topology.local_device_count * topology.num_scs()),
        max_unique_ids_per_partition(max_ids_per_partition.size()),
        required_buffer_size_per_sc(topology.local_device_count *
                                    topology.num_sc_per_device),
        minibatch_alignment_per_sc(required_buffer_size_per_sc.size()) {}

  // [d * N + t]: the largest partition towards SparseCore t from any
  // SparseCore of local device d, in entries and in distinct rows.
  std::vector<int32_t> max_ids_per_partition;
  std::vector<int32_t> max_unique_ids_per_partition;
  // [d * S + s]: cells, with each partition rounded up to 8.
  std::vector<int32_t> required_buffer_size_per_sc;
  // [d * S + s]: cells beyond those, because each minibatch rounds its
  // partitions up. Zeros with one minibatch.
  std::vector<int32_t> minibatch_alignment_per_sc;
  // Ids dropped from this process's part of the batch: by the policies of its
  // features, by limits and by full buffers.
  int64_t dropped_id_count = 0;
};

// The stats of a stack, while tasks of its SparseCores add to them.
// `local_sc` = d * S + s.
class SharedStats {
 public:
  explicit SharedStats(const Topology& topology)
      : num_sc_per_device_(topology.num_sc_per_device), stats_(topology) {}

  void Record(int64_t local_sc, const PartitionCounts& counts,
              int64_t required_cells) {
    const std::lock_guard lock(mutex_);
    const int64_t device = local_sc / num_sc_per_device_;
    Raise(stats_.max_ids_per_partition, device, counts.ids);
    Raise(stats_.max_unique_ids_per_partition, device, counts.unique_ids);
    stats_.required_buffer_size_per_sc[local_sc] =
        static_cast<int32_t>(required_cells);
  }

  // Records the cells that all minibatches of a SparseCore take together. Call
  // it once its counts are recorded.
  void RecordMinibatches(int64_t local_sc, int64_t required_cells) {
    const std::lock_guard lock(mutex_);
    stats_.minibatch_alignment_per_sc[local_sc] =
        static_cast<int32_t>(required_cells) -
        stats_.required_buffer_size_per_sc[local_sc];
  }

  void RecordDropped(int64_t dropped_id_count) {
    if (dropped_id_count == 0) return;
    const std::lock_guard lock(mutex_);
    stats_.dropped_id_count += dropped_id_count;
  }

  // Ends the use of this.
  StackStats Take() {
    const std::lock_guard lock(mutex_);
    return std::move(stats_);
  }

 private:
  static void Raise(std::vector<int32_t>& maxima, int64_t device,
                    std::span<const int32_t> counts) {
    int32_t* const of_device = maxima.data() + device * std::ssize(counts);
    for (size_t t = 0; t < counts.size(); ++t) {
      of_device[t] = std::max(of_device[t], counts[t]);
    }
  }

  const int64_t num_sc_per_device_;
  std::mutex mutex_;
  StackStats stats_;  // guarded by mutex_
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_
