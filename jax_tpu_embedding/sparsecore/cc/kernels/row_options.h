// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What can be done to a row beside the step of its optimizer, whichever it is.
//
//   before:  g = g * (c / max(norm of g, c))    max_gradient_norm c > 0, or NaN
//            g = g + d * w                      l2_weight_decay d
//   after:   w' = w' - e * w                    decoupled_weight_decay e
//            w' = clamp(w', min, max)           limits
//
// lib/core/row_options.py has the same in jnp and defines what is correct.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_ROW_OPTIONS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_ROW_OPTIONS_H_

#include <limits>
#include <optional>

#include "jax_tpu_embedding/sparsecore/cc/kernels/row_block.h"

namespace jte {

struct RowOptions {
  std::optional<float> max_gradient_norm = {};
  std::optional<float> l2_weight_decay = {};
  std::optional<float> decoupled_weight_decay = {};
  float min_value = -std::numeric_limits<float>::infinity();
  float max_value = std::numeric_limits<float>::infinity();
};

// The options that come before the step.
void PrepareGradients(const RowBlock& block, const RowOptions& options);

// Those that come after it. `old_weights` has the weights before the step,
// [num_rows, dim]; read only with decoupled_weight_decay.
void FinishWeights(const RowBlock& block, const RowOptions& options,
                   const float* old_weights);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_ROW_OPTIONS_H_
