// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Stage 1: the ids of one SparseCore as elements to sort.
//
// Elements are in order of occurrence: features by row offset, samples,
// positions.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_EXTRACT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_EXTRACT_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

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

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_EXTRACT_H_
