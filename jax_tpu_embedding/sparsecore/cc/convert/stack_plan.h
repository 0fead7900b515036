// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A stack, checked and ready to convert.
//
// PlanStack refuses everything that can be refused before the ids are looked
// at; the stages behind it assume what it checked.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STACK_PLAN_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STACK_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/enum_names.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/mod_shard.h"

namespace jte::convert {

// Errors: any other name; the message lists the choices.
inline Result<IdPolicy> ParseIdPolicy(std::string_view name) {
  constexpr EnumNames<IdPolicy, 4> kNames = {{
      {"error", IdPolicy::kError},
      {"drop", IdPolicy::kDrop},
      {"clamp", IdPolicy::kClamp},
      {"modulo", IdPolicy::kModulo},
  }};
  return ParseEnum("out_of_range_ids", kNames, name);
}

inline Result<WeightPolicy> ParseWeightPolicy(std::string_view name) {
  constexpr EnumNames<WeightPolicy, 4> kNames = {{
      {"error", WeightPolicy::kError},
      {"drop", WeightPolicy::kDrop},
      {"clamp", WeightPolicy::kClamp},
      {"keep", WeightPolicy::kKeep},
  }};
  return ParseEnum("non_finite_weights", kNames, name);
}

// ---- How many cells the buffers of a stack have, and whether they can have
// them. cc/layout/csr_layout.h has the formulas; here is checked what users
// pass into them.

// What a user says about a stack. Python: StackedTableSpec.
struct StackSpec {
  std::string name = {};
  std::string combiner;
  int64_t max_ids_per_partition = 0;
  int64_t max_unique_ids_per_partition = 0;
  std::optional<int64_t> suggested_coo_buffer_size_per_device = std::nullopt;
};

// Errors: a count that is not positive, more local than global devices, or
// more SparseCores than the sizes of the buffers can be computed for.
Result<void> CheckTopology(const Topology& topology);

// COO cells of one device: the suggestion rounded up to a whole number of
// aligned cells per SparseCore, or without one the most that batches within
// max_ids_per_partition can fill. `topology` is checked.
//
// Errors: limits that are not positive, a suggestion above that most, or a
// number of cells that does not fit int32.
Result<int64_t> CooCellsPerDevice(const StackSpec& spec,
                                  const Topology& topology,
                                  bool enable_minibatching);

// ---- The plan.

// One feature of a stack.
struct FeatureInput {
  std::string name;
  int64_t vocabulary_size = 0;
  IdTransform transform = {};
  InputBatch batch = {};
  IdPolicy out_of_range_ids = IdPolicy::kError;
  WeightPolicy non_finite_weights = WeightPolicy::kError;
};

// Consecutive samples of a feature, in this process's part of the batch. On
// their SparseCore they have the sample ids from first_sample_id on.
struct SampleRange {
  int64_t first = 0;
  int64_t size = 0;
  int64_t first_sample_id = 0;
};

// A feature, with what its samples and ids become on a SparseCore.
struct FeaturePlan {
  FeatureInput input;
  int64_t samples_per_device = 0;
  // Before its first one, on each SparseCore (kSplitThenStack) or on each
  // device (kStackThenSplit).
  int64_t samples_before = 0;
  uint32_t rotation = 0;   // IdTransform::col_shift mod num_scs
  uint32_t first_row = 0;  // IdTransform::col_offset / num_scs
  uint32_t last_row = 0;   // that of the largest id
};

struct StackPlan {
  StackSpec spec;
  Topology topology;
  FeatureStackingStrategy strategy;
  Combiner combiner;
  int64_t coo_cells_per_device = 0;
  bool has_weights = false;    // any feature; others have weights of 1
  int64_t num_sample_ids = 0;  // sample ids of a SparseCore are below
  Divisor num_scs;             // divides ids into rows
  SortKey sort_key;
  std::vector<FeaturePlan> features;  // by row offset, so by sample id

  // What SparseCore `local_sc` of this process, counted device by device, gets
  // of a feature.
  SampleRange SamplesOf(const FeaturePlan& feature, int64_t local_sc) const;

  int64_t coo_cells_per_sc() const {
    return coo_cells_per_device / topology.num_sc_per_device;
  }
  int64_t num_ids() const {
    int64_t num_ids = 0;
    for (const FeaturePlan& feature : features) {
      num_ids += feature.input.batch.num_ids();
    }
    return num_ids;
  }
};

// `topology` is checked; `features` are in any order, at least one.
//
// Errors, each naming stack or feature: a combiner that does not exist, a batch
// that the local SparseCores cannot share evenly or that is too large, features
// that overlap in the stacked batch (or, with kStackThenSplit, leave gaps in
// it), weights that are not shaped like the ids, row splits that are not a
// partition of the ids, a vocabulary or an offset that is negative or that
// leads beyond int32, buffers that are not a multiple of 8 cells for each
// SparseCore.
Result<StackPlan> PlanStack(StackSpec spec, int64_t coo_cells_per_device,
                            std::vector<FeatureInput> features,
                            const Topology& topology,
                            FeatureStackingStrategy strategy =
                                FeatureStackingStrategy::kSplitThenStack);

// How much the partitions of a SparseCore may hold. With minibatches, that
// holds for each bucket of a partition.
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

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STACK_PLAN_H_
