// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What can be done to a row beside the step of its optimizer, whichever it is.
//
//   instead: nothing, if g is not finite        skip_non_finite_gradients
//   before:  g = g * (c / max(norm of g, c))    max_gradient_norm c > 0, or NaN
//            g = g + d * w                      l2_weight_decay d
//   after:   w' = w' - e * w                    decoupled_weight_decay e
//            w' = clamp(w', min, max)           limits
//
// lib/core/row_options.py has the same in jnp and defines what is correct.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_OPTIONS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"

namespace jte::kernels {

struct RowOptions {
  bool skip_non_finite_gradients = false;
  std::optional<float> max_gradient_norm = {};
  std::optional<float> l2_weight_decay = {};
  std::optional<float> decoupled_weight_decay = {};
  float min_value = -std::numeric_limits<float>::infinity();
  float max_value = std::numeric_limits<float>::infinity();

  bool operator==(const RowOptions&) const = default;
};

// What a gradient becomes with l2_weight_decay, and a new weight with
// decoupled_weight_decay.
[[gnu::always_inline]] inline float WithDecay(float gradient, float decay,
                                              float weight) {
  return gradient + decay * weight;
}
[[gnu::always_inline]] inline float Decayed(float weight, float decay,
                                            float old_weight) {
  return weight - decay * old_weight;
}

// A weight within the limits. In this order of arguments a NaN stays one.
[[gnu::always_inline]] inline float Limited(float weight, float min_value,
                                            float max_value) {
  return std::min(std::max(weight, min_value), max_value);
}

// Moves the rows whose gradient has no NaN and no infinity to the front, in
// their order, and returns how many they are. `gradients` is [num_rows, dim].
int64_t KeepFiniteGradients(int64_t num_rows, int64_t dim, int32_t* rows,
                            float* gradients);

// The options that come before the step.
void PrepareGradients(const RowBlock& block, const RowOptions& options);

// Those that come after it. `old_weights` has the weights before the step,
// [num_rows, dim]; read only with decoupled_weight_decay.
void FinishWeights(const RowBlock& block, const RowOptions& options,
                   const float* old_weights);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_ROW_OPTIONS_H_
