// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What policies make of ids outside of a table and of weights that are not
// finite.
//
// The usual slice has neither, which extraction sees at no cost; only the
// others come here, to be copied.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CLEAN_SLICE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CLEAN_SLICE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// A slice in memory of its own. All ids are in range.
struct CleanSlice {
  SampleRange samples;
  std::vector<int32_t> ids;
  std::vector<float> weights;  // empty unless has_weights
  std::vector<int64_t> row_splits;
  bool has_weights = false;
  int64_t dropped_id_count = 0;

  // A view of this.
  Slice View() const;
};

// Applies the policies of `feature` to its ids and then, to those that are not
// dropped, to their weights.
//
// Errors: what a policy calls an error; the message names the first one.
Result<CleanSlice> Clean(const FeatureInput& feature, const Slice& slice);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CLEAN_SLICE_H_
