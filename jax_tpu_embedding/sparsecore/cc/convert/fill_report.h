// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What filling found out about the ids of one SparseCore.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_REPORT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_REPORT_H_

#include <cstdint>

namespace jte {

// A partition of a SparseCore, or with minibatches a bucket of one.
struct PartitionName {
  static constexpr int32_t kAllBuckets = -1;

  uint32_t partition = 0;
  int32_t bucket = kAllBuckets;
};

// The one that has the most of something.
struct LargestPartition {
  int64_t count = 0;
  PartitionName name;

  void Record(int64_t other_count, PartitionName other_name) {
    if (other_count > count) *this = {other_count, other_name};
  }
};

struct FillReport {
  // With minibatches, set only where something was dropped.
  LargestPartition ids;
  LargestPartition unique_ids;
  int64_t required_cells = 0;  // had nothing been dropped
  int64_t dropped_id_count = 0;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FILL_REPORT_H_
