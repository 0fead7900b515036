// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_of_squares.h"

namespace jte::kernels {

namespace {

constexpr uint32_t kSignBit = uint32_t{1} << 31;

JTE_VECTOR_CLONES
bool IsFinite(const float* values, int64_t size) {
  // Without their signs, numbers are in the order of their bits, and after the
  // finite ones come infinity and NaN.
  uint32_t largest = 0;
  for (int64_t k = 0; k < size; ++k) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[k]) & ~kSignBit);
  }
  return largest <
         std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
}

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
    for (int64_t d = 0; d < block.dim; ++d) {
      grad[d] = WithDecay(grad[d], decay, weight[d]);
    }
  }
}

JTE_VECTOR_CLONES
void SubtractDecay(const RowBlock& block, float decay,
                   const float* old_weights) {
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* __restrict weight = block.weight(i);
    const float* __restrict old = old_weights + i * block.dim;
    for (int64_t d = 0; d < block.dim; ++d) {
      weight[d] = Decayed(weight[d], decay, old[d]);
    }
  }
}

JTE_VECTOR_CLONES
void Clamp(const RowBlock& block, float min_value, float max_value) {
  for (int64_t i = 0; i < block.num_rows; ++i) {
    float* weight = block.weight(i);
    for (int64_t d = 0; d < block.dim; ++d) {
      weight[d] = Limited(weight[d], min_value, max_value);
    }
  }
}

}  // namespace

int64_t KeepFiniteGradients(int64_t num_rows, int64_t dim, int32_t* rows,
                            float* gradients) {
  int64_t num_kept = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    const float* gradient = gradients + i * dim;
    if (!IsFinite(gradient, dim)) continue;
    if (num_kept < i) {
      rows[num_kept] = rows[i];
      std::copy_n(gradient, dim, gradients + num_kept * dim);
    }
    ++num_kept;
  }
  return num_kept;
}

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

}  // namespace jte::kernels
