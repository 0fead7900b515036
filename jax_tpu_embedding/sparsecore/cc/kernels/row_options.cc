// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/row_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sum_of_squares.h"

namespace jte {
namespace {

JTE_VECTOR_CLONES
void LimitNorms(const RowBlock& block, float limit) {
  // What cannot be a limit makes all rows NaN: here is no place for an error.
  if (!(limit > 0)) limit = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* grad = block.gradient(i);
    const float norm = std::sqrt(SumOfSquares(grad, block.dim));
    // In this order of arguments a NaN stays one.
    const float factor = limit / std::max(norm, limit);
    for (int64_t d = 0; d < block.dim; ++d) grad[d] *= factor;
  }
}

JTE_VECTOR_CLONES
void AddDecay(const RowBlock& block, float decay) {
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* __restrict grad = block.gradient(i);
    const float* __restrict weight = block.weight(i);
    for (int64_t d = 0; d < block.dim; ++d) grad[d] += decay * weight[d];
  }
}

JTE_VECTOR_CLONES
void SubtractDecay(const RowBlock& block, float decay,
                   const float* old_weights) {
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* __restrict weight = block.weight(i);
    const float* __restrict old = old_weights + i * block.dim;
    for (int64_t d = 0; d < block.dim; ++d) weight[d] -= decay * old[d];
  }
}

JTE_VECTOR_CLONES
void Clamp(const RowBlock& block, float min_value, float max_value) {
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* weight = block.weight(i);
    for (int64_t d = 0; d < block.dim; ++d) {
      // In this order of arguments a NaN stays one.
      weight[d] = std::min(std::max(weight[d], min_value), max_value);
    }
  }
}

}  // namespace

void PrepareGradients(const RowBlock& block, const RowOptions& options) {
  if (options.max_gradient_norm) LimitNorms(block, *options.max_gradient_norm);
  if (options.l2_weight_decay) AddDecay(block, *options.l2_weight_decay);
}

void FinishWeights(const RowBlock& block, const RowOptions& options,
                   const float* old_weights) {
  if (options.decoupled_weight_decay) {
    SubtractDecay(block, *options.decoupled_weight_decay, old_weights);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (options.min_value > -kInfinity || options.max_value < kInfinity) {
    Clamp(block, options.min_value, options.max_value);
  }
}

}  // namespace jte
