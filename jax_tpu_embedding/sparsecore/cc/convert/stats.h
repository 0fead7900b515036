// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a batch needs, measured before anything is dropped.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {

// Per stack, for L local devices, S SparseCores per device and N in the job.
// Python: SparseDenseMatmulInputStats.
struct StackStats {
  explicit StackStats(const Topology& topology)
      : max_ids_per_partition(topology.local_device_count * topology.num_scs()),
        max_unique_ids_per_partition(max_ids_per_partition.size()),
        required_buffer_size_per_sc(topology.local_device_count *
                                    topology.num_sc_per_device) {}

  // [d * N + t]: the largest partition towards SparseCore t from any
  // SparseCore of local device d, in entries and in distinct rows.
  std::vector<int32_t> max_ids_per_partition;
  std::vector<int32_t> max_unique_ids_per_partition;
  // [d * S + s]: cells, with each partition rounded up to 8.
  std::vector<int32_t> required_buffer_size_per_sc;
  // Ids dropped from this process's part of the batch.
  int64_t dropped_id_count = 0;
};

// The maxima of one local device. SparseCores may record at the same time:
// the order of maxima does not matter.
class PartitionMaxima {
 public:
  // Spans of N elements that start at 0.
  PartitionMaxima(std::span<int32_t> ids, std::span<int32_t> unique_ids)
      : ids_(ids), unique_ids_(unique_ids) {}

  void Record(uint32_t partition, int32_t num_ids, int32_t num_unique_ids) {
    Raise(ids_[partition], num_ids);
    Raise(unique_ids_[partition], num_unique_ids);
  }

 private:
  static void Raise(int32_t& maximum, int32_t value) {
    std::atomic_ref<int32_t> atomic(maximum);
    int32_t current = atomic.load(std::memory_order_relaxed);
    while (current < value && !atomic.compare_exchange_weak(
                                  current, value, std::memory_order_relaxed)) {
    }
  }

  std::span<int32_t> ids_;
  std::span<int32_t> unique_ids_;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STATS_H_
