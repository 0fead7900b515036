// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The first two stages together: the ids of one SparseCore, sorted.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SORTED_IDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SORTED_IDS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

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

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SORTED_IDS_H_
