// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The samples of one feature that one SparseCore gets, with their ids.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SLICE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SLICE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/convert/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// Views of the plan's batches, or of memory that replaces them.
struct Slice {
  SampleRange samples;
  IdSpan ids;  // of these samples only, like the weights
  std::optional<std::span<const float>> weights = std::nullopt;
  int64_t valency = 0;  // dense
  // Ragged: samples.size + 1, from any number on; else empty.
  std::span<const int64_t> row_splits = {};

  // Position in `ids` of the first id of the r-th sample; r <= samples.size.
  int64_t FirstId(int64_t r) const {
    return row_splits.empty() ? r * valency : row_splits[r] - row_splits[0];
  }
  int64_t num_ids() const { return FirstId(samples.size); }
};

// `local_sc` counts the SparseCores of this process, device by device.
inline Slice SliceOf(const StackPlan& plan, const FeaturePlan& feature,
                     int64_t local_sc) {
  const SampleRange samples = plan.SamplesOf(feature, local_sc);
  const InputBatch& batch = feature.input.batch;
  const int64_t begin = batch.FirstId(samples.first);
  const int64_t size = batch.FirstId(samples.first + samples.size) - begin;
  Slice slice = {.samples = samples,
                 .ids = std::visit(
                     [begin, size](auto all) -> IdSpan {
                       return all.subspan(begin, size);
                     },
                     batch.ids),
                 .weights = std::nullopt,
                 .valency = batch.valency,
                 .row_splits = {}};
  if (batch.weights) slice.weights = batch.weights->subspan(begin, size);
  if (!batch.row_splits.empty()) {
    slice.row_splits =
        batch.row_splits.subspan(samples.first, samples.size + 1);
  }
  return slice;
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SLICE_H_
