// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How much the partitions of a SparseCore may hold.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_LIMITS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_LIMITS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// With minibatches, the limits hold for each bucket of a partition.
struct PartitionLimits {
  uint32_t num_scs;  // partitions
  int64_t max_ids;
  int64_t max_unique_ids;
};

inline PartitionLimits LimitsOf(const StackPlan& plan) {
  return {.num_scs = static_cast<uint32_t>(plan.topology.num_scs()),
          .max_ids = plan.spec.max_ids_per_partition,
          .max_unique_ids = plan.spec.max_unique_ids_per_partition};
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_LIMITS_H_
