// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sizes of the CSR-wrapped COO buffers of one stack on one device.
//
// Without minibatching (S SparseCores per device, N in the job, P = max(N, 8)):
//
//   row pointers   | SC 0: P entries | SC 1: P entries | ...      S blocks
//   COO cells      | SC 0: B/S cells | SC 1: B/S cells | ...      S regions
//
// Entry t < N of a block is the exclusive end of partition t, counted from the
// region's start; partition t begins at the previous end, rounded up to 8. The
// entries from N to P hold the rounded end of the last partition.
//
// With minibatching there are S * num_minibatches blocks, SparseCore major, the
// cells form one packed run per device, and row pointers count from the
// device's first cell.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CSR_LAYOUT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CSR_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {

// Devices and SparseCores of a job. Python: layout.Topology.
struct Topology {
  int64_t local_device_count = 1;
  int64_t global_device_count = 1;
  int64_t num_sc_per_device = 1;

  constexpr int64_t num_scs() const {
    return global_device_count * num_sc_per_device;
  }
};

// P: entries in one block of row pointers.
constexpr int64_t RowPointersPerBlock(int64_t num_scs) {
  return std::max(num_scs, kMinRowPointersPerBlock);
}

// Row pointers of one device.
constexpr int64_t RowPointersPerDevice(const Topology& topology,
                                       bool enable_minibatching) {
  return RowPointersPerBlock(topology.num_scs()) * topology.num_sc_per_device *
         (enable_minibatching ? kMaxMinibatches : 1);
}

// COO cells of one device that hold any batch within max_ids_per_partition.
constexpr int64_t MaxCooCellsPerDevice(int64_t max_ids_per_partition,
                                       const Topology& topology,
                                       bool enable_minibatching) {
  return RoundUp(max_ids_per_partition, kAlignment) *
         topology.num_sc_per_device * topology.num_scs() *
         (enable_minibatching ? kMaxMinibatches : 1);
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CSR_LAYOUT_H_
