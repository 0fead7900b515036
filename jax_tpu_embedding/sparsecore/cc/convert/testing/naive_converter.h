// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A copy in C++ of lib/core/input_preprocessing.py, which defines what is
// correct, to test the converter against where Python is not: under sanitizers
// and on any machine. As plain as it can be, and slow. It shares with the
// converter the input's types, the combiners' formulas (gains.h) and the hash
// of the buckets, which have tests of their own.
//
// Expects requests that PlanConversion accepts. One host.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_NAIVE_CONVERTER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_NAIVE_CONVERTER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte::convert {

// ---- First half: which SparseCore gets which ids.

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

// ---- Second half: the buffers.

// All local devices of one stack.
struct NaiveStack {
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
  // The statistics that StackStats has.
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

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_TESTING_NAIVE_CONVERTER_H_
