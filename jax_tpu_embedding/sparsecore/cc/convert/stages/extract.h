// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The first stages: the ids of one SparseCore as elements, and these sorted.
//
// Elements are first in order of occurrence: features by row offset, samples,
// positions.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_EXTRACT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_EXTRACT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"

namespace jte::convert {

// The memory that all stages of one SparseCore work in.
struct Scratch {
  ScratchArray<uint64_t> elements;
  ScratchArray<uint64_t> sorted_elements;
  ScratchArray<float> sample_factors;  // see WriteSampleFactors
  ScratchArray<float> id_gains;
  ScratchArray<WeightedId> weighted_ids;
  ScratchArray<int32_t> num_ids;         // of each partition
  ScratchArray<int32_t> num_unique_ids;  // of each partition

  size_t capacity_bytes() const {
    return elements.capacity_bytes() + sorted_elements.capacity_bytes() +
           sample_factors.capacity_bytes() + id_gains.capacity_bytes() +
           weighted_ids.capacity_bytes() + num_ids.capacity_bytes() +
           num_unique_ids.capacity_bytes();
  }
};

// Views of a Scratch, valid until its next use.
struct ExtractedIds {
  std::span<uint64_t> elements;  // as in sort_key.h
  GainSource gains;              // of their payloads
  int64_t dropped_id_count = 0;  // by the policies of the features
};

// `local_sc` counts the SparseCores of this process, device by device.
//
// Errors: an id outside [0, vocabulary_size) or a weight that is not finite,
// where the feature's policy says so; the message names the first one.
Result<ExtractedIds> ExtractIds(const StackPlan& plan, int64_t local_sc,
                                Scratch& scratch);

// Views of a Scratch, valid until its next use.
struct SortedIds {
  std::span<uint64_t> elements;  // as in sort_key.h, ascending
  std::span<uint64_t> spare;     // as large, free for the next stage
  GainSource gains;              // of their payloads
  int64_t dropped_id_count = 0;  // by the policies of the features
};

// `local_sc` counts the SparseCores of this process, device by device.
//
// Errors: those of ExtractIds.
Result<SortedIds> SortIds(const StackPlan& plan, int64_t local_sc,
                          Scratch& scratch);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_EXTRACT_H_
