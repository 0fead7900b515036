// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The buffer format written down as directly as it can be, to test the
// converter against. Slow, and shares with it the input's types, the combiners'
// formulas (gains.h) and the hash of the buckets, which have tests of their
// own.
//
// Expects requests that PlanConversion accepts. One host.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_CONVERTER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_CONVERTER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"

namespace jte {

// All local devices of one stack.
struct NaiveStack {
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
  // As in StackStats.
  std::vector<int32_t> max_ids_per_partition;
  std::vector<int32_t> max_unique_ids_per_partition;
  std::vector<int32_t> required_buffer_size_per_sc;
  std::vector<int32_t> minibatch_alignment_per_sc;
  int64_t dropped_id_count = 0;
};

struct NaiveConversion {
  std::vector<NaiveStack> stacks;  // in the order of PlanConversion
  int num_minibatches = 1;
};

// None: the converter has to refuse the ids or weights, or what exceeds limits
// or buffers.
std::optional<NaiveConversion> ConvertNaively(
    const std::vector<StackedFeature>& features, const ConvertOptions& options);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_NAIVE_CONVERTER_H_
