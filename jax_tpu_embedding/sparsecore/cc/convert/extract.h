// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Stage 1: the ids of one SparseCore as elements to sort.
//
// SparseCore s of local device d has, of each feature, the samples
// [(d * S + s) * samples_per_sc, (d * S + s + 1) * samples_per_sc). Elements
// are in order of occurrence: features by row offset, samples, positions.

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
};

// `local_sc` counts the SparseCores of this process, device by device.
//
// Errors: an id outside [0, vocabulary_size); the message names the first one.
Result<ExtractedIds> ExtractIds(const StackPlan& plan, int64_t local_sc,
                                Scratch& scratch);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_EXTRACT_H_
