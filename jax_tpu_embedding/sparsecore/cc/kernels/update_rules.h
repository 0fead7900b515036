// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The optimizers with a fused kernel on the CPU, one struct each.
//
// A rule holds the hyperparameters and steps one element of a row; the kernel
// applies it to every element. lib/core/update_rules.py has the same formulas
// in jnp and defines what is correct; a test compares the two.
//
// To add one: a struct below, then its line in apply_rows.cc.
//
// Source: docs/reference/primitives.md, "Update rules", in the written
// association.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_RULES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_RULES_H_

#include <array>
#include <cmath>

namespace jte {

// w' = w - g * lr
struct SgdRule {
  static constexpr int kNumSlots = 0;
  static constexpr int kNumHyperparameters = 1;

  explicit SgdRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]) {}

  void Step(float grad, float& weight, std::array<float, kNumSlots>&) const {
    weight -= grad * learning_rate;
  }

  float learning_rate;
};

// a' = a + g^2;  w' = w - lr * g / sqrt(a')
struct AdagradRule {
  static constexpr int kNumSlots = 1;  // accumulator
  static constexpr int kNumHyperparameters = 1;

  explicit AdagradRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]) {}

  void Step(float grad, float& weight,
            std::array<float, kNumSlots>& slots) const {
    auto& [accumulator] = slots;
    accumulator += grad * grad;
    weight -= (learning_rate * grad) / std::sqrt(accumulator);
  }

  float learning_rate;
};

// m' = m + (1 - beta_1) * (g - m);  v' = v + (1 - beta_2) * (g^2 - v)
// w' = w - alpha_t * m' / (sqrt(v') + epsilon_hat)
struct AdamRule {
  static constexpr int kNumSlots = 2;  // momentum, velocity
  static constexpr int kNumHyperparameters = 4;

  explicit AdamRule(const float* hyperparameters)
      : alpha_t(hyperparameters[0]),
        one_minus_beta_1(1.0f - hyperparameters[1]),
        one_minus_beta_2(1.0f - hyperparameters[2]),
        epsilon_hat(hyperparameters[3]) {}

  void Step(float grad, float& weight,
            std::array<float, kNumSlots>& slots) const {
    auto& [momentum, velocity] = slots;
    momentum += one_minus_beta_1 * (grad - momentum);
    velocity += one_minus_beta_2 * (grad * grad - velocity);
    weight -= (alpha_t * momentum) / (std::sqrt(velocity) + epsilon_hat);
  }

  float alpha_t;
  float one_minus_beta_1;
  float one_minus_beta_2;
  float epsilon_hat;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_RULES_H_
