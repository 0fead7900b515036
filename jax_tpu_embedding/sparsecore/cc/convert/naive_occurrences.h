// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The first half of naive_converter.h: which SparseCore gets which ids.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_OCCURRENCES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_OCCURRENCES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// An id that was not dropped by a policy.
struct Occurrence {
  int64_t bucket = 0;  // 0 until the batch is known to need minibatches
  int64_t target = 0;
  int64_t row = 0;
  int64_t sample = 0;
  float gain = 0.0f;
};

// What one SparseCore has of a stack, in order of occurrence.
struct SourceCore {
  std::vector<Occurrence> occurrences;
  int64_t dropped_id_count = 0;
};

// One per SparseCore of the local devices; none if a policy refuses an id or a
// weight.
std::optional<std::vector<SourceCore>> Distribute(
    const StackSpec& spec, std::vector<FeatureInput> features,
    const ConvertOptions& options);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_OCCURRENCES_H_
