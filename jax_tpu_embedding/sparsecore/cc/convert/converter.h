// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ids of a batch to the buffers that a lookup reads.
//
//   auto stacks = PlanConversion(features, options);
//   ... allocate CsrBuffers for each of *stacks ...
//   auto conversion = Convert(*stacks, options, buffers, executor, nullptr);
//
// Convert runs one task per (stack, local device, SparseCore):
//
//   extract -> sort -> fill
//
// and with minibatching (minibatch_converter.h) some more between the last two.
// Its output depends neither on the executor nor on the order of the features.
// Both functions may be called from any number of threads at once.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERTER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte::convert {

struct StackedFeature {
  FeatureInput feature;
  StackSpec stack;
};

// Groups features by the name of their stack, in order of first appearance, and
// checks the request. Where the specs of a stack differ, that of the feature
// with the smallest row offset holds.
//
// Errors: no feature; those of CheckTopology, CooCellsPerDevice and PlanStack.
Result<std::vector<StackPlan>> PlanConversion(
    std::vector<StackedFeature> features, const ConvertOptions& options);

// `buffers` has an element for each stack, each of
// local_device_count * RowPointersPerDevice row pointers and
// local_device_count * coo_cells_per_device cells, device after device. Every
// element is written. On error their content is unspecified.
//
// `all_reduce` may be null unless enable_minibatching meets several hosts. All
// hosts must call with the same options and a batch_number that none used
// before.
//
// Errors: an id outside its table or a weight that is not finite, unless their
// feature has a policy for them; without allow_id_dropping, partitions beyond a
// limit and buffers that are too small, all in one message; those of
// ConvertInMinibatches.
Result<Conversion> Convert(std::span<const StackPlan> stacks,
                           const ConvertOptions& options,
                           std::span<const CsrBuffers> buffers,
                           Executor& executor,
                           collective::AllReduce* all_reduce);

// What Convert has to do, in units of about a nanosecond, for callers that
// choose an executor.
int64_t ConversionWork(std::span<const StackPlan> stacks);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERTER_H_
