// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The optimizers with a fused kernel, one struct each: for CPUs and GPUs.
//
// A rule holds the hyperparameters and steps one element of a row; the kernel
// applies it to every element. lib/core/update_rules.py has the same formulas
// in jnp and defines what is correct; a test compares the two.
//
// To add one: a struct below, then its line in step_rule.cc.
//
// Source: docs/reference/primitives.md, "Update rules", in the written
// association.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_UPDATE_RULES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_UPDATE_RULES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte::kernels {

// No rule below has more.
inline constexpr int kMaxSlots = 2;

// The elements of a row's slots.
template <int kNumSlots>
using Slots = std::array<float, kNumSlots>;

// 1, -1, or what is neither positive nor negative as it is: 0, NaN.
[[gnu::always_inline]] JTE_HOST_DEVICE inline float Sign(float x) {
  return x > 0 ? 1.0f : (x < 0 ? -1.0f : x);
}

// The lesser of two; NaN if one of them is, unlike std::min.
[[gnu::always_inline]] JTE_HOST_DEVICE inline float Least(float x, float y) {
  return x < y || std::isnan(x) ? x : y;
}

// w' = w - g * lr
struct SgdRule {
  static constexpr int kNumSlots = 0;
  static constexpr int kNumHyperparameters = 1;

  JTE_HOST_DEVICE explicit SgdRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>&) const {
    weight -= grad * learning_rate;
  }

  float learning_rate;
};

// a' = a + g^2;  w' = w - lr * g / sqrt(a')
struct AdagradRule {
  static constexpr int kNumSlots = 1;  // accumulator
  static constexpr int kNumHyperparameters = 1;

  JTE_HOST_DEVICE explicit AdagradRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [accumulator] = slots;
    accumulator += grad * grad;
    weight -= (learning_rate * grad) / std::sqrt(accumulator);
  }

  float learning_rate;
};

// a' = a + (the sum of g^2 over the row) / the columns of the table, to which
// the stack may add others;  w' = w - lr * g / (sqrt(a') + epsilon)
struct RowwiseAdagradRule {
  static constexpr int kNumSlots = 0;            // of the row's elements
  static constexpr int kNumRowSlots = 1;         // accumulator
  static constexpr int kNumHyperparameters = 3;  // the last is the columns

  JTE_HOST_DEVICE explicit RowwiseAdagradRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        epsilon(hyperparameters[1]),
        embedding_dim(hyperparameters[2]) {}

  // `sum_of_squares` is that of the row's gradient.
  JTE_HOST_DEVICE void BeginRow(float sum_of_squares, float& accumulator) {
    accumulator += sum_of_squares / embedding_dim;
    denominator = std::sqrt(accumulator) + epsilon;
  }

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>&) const {
    weight -= (learning_rate * grad) / denominator;
  }

  float learning_rate;
  float epsilon;
  float embedding_dim;
  float denominator = 0.0f;  // of the row
};

// a' = a + g^2, or beta_2 * a + (1 - beta_2) * g^2 unless beta_2 is 1
// h = (a' + epsilon)^(-1 / exponent) * g;  m' = decay * m + h
// w' = w - lr * m', or lr * (decay * m' + h) with use_nesterov
template <typename Power>
struct AdagradMomentumRule {
  static constexpr int kNumSlots = 2;  // accumulator, momentum
  static constexpr int kNumHyperparameters = 6;

  JTE_HOST_DEVICE static float Exponent(const float* hyperparameters) {
    return -1.0f / hyperparameters[4];
  }

  JTE_HOST_DEVICE explicit AdagradMomentumRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        decay(hyperparameters[1]),
        // With a factor of 1 the product is the number itself.
        kept(hyperparameters[2]),
        added(hyperparameters[2] == 1.0f ? 1.0f : 1.0f - hyperparameters[2]),
        epsilon(hyperparameters[3]),
        power(Exponent(hyperparameters)),
        use_nesterov(hyperparameters[5] != 0.0f) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [accumulator, momentum] = slots;
    accumulator = kept * accumulator + added * (grad * grad);
    const float scaled = power(accumulator + epsilon) * grad;
    momentum = decay * momentum + scaled;
    const float ahead = decay * momentum + scaled;
    weight -= learning_rate * (use_nesterov ? ahead : momentum);
  }

  float learning_rate;
  float decay;
  float kept;
  float added;
  float epsilon;
  Power power;
  bool use_nesterov;
};

// m' = m + (1 - beta_1) * (g - m);  v' = v + (1 - beta_2) * (g^2 - v)
// w' = w - alpha_t * m' / (sqrt(v') + epsilon_hat)
struct AdamRule {
  static constexpr int kNumSlots = 2;  // momentum, velocity
  static constexpr int kNumHyperparameters = 4;

  JTE_HOST_DEVICE explicit AdamRule(const float* hyperparameters)
      : alpha_t(hyperparameters[0]),
        one_minus_beta_1(1.0f - hyperparameters[1]),
        one_minus_beta_2(1.0f - hyperparameters[2]),
        epsilon_hat(hyperparameters[3]) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
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

// With p = -learning_rate_power: a' = a + g^2;  d = a'^p - a^p
//   multiply_linear_by_learning_rate      without it
//   l' = (l + lr * g) - d * w             l' = (l + g) - (d / lr) * w
//   t = l1 * lr                           t = l1
//   n = (a'^p + 2 * (lr * l2)) + beta     n = (a'^p + beta) / lr + 2 * l2
// w' = (l1 == 0 ? -l' : clamp(l', -t, t) - l') / n
template <typename Power>
struct FtrlRule {
  static constexpr int kNumSlots = 2;            // accumulator, linear
  static constexpr int kNumHyperparameters = 6;  // the last one is the flag

  JTE_HOST_DEVICE static float Exponent(const float* hyperparameters) {
    return -hyperparameters[1];
  }

  JTE_HOST_DEVICE explicit FtrlRule(const float* hyperparameters)
      : power(Exponent(hyperparameters)) {
    const float learning_rate = hyperparameters[0];
    l1 = hyperparameters[2];
    const float l2 = hyperparameters[3];
    const float beta = hyperparameters[4];
    const bool multiply = hyperparameters[5] != 0.0f;
    // One formula for both: a factor or divisor of 1 changes no bit.
    factor = multiply ? learning_rate : 1.0f;
    divisor = multiply ? 1.0f : learning_rate;
    threshold = l1 * factor;
    summand_1 = multiply ? 2.0f * (learning_rate * l2) : beta;
    summand_2 = multiply ? beta : 2.0f * l2;
  }

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [accumulator, linear] = slots;
    const float old_power = power(accumulator);
    accumulator += grad * grad;
    const float new_power = power(accumulator);
    const float change = (new_power - old_power) / divisor;
    linear = (linear + factor * grad) - change * weight;
    // In this order of arguments a threshold of NaN stays one; `linear` comes
    // back with the difference.
    const float clamped = std::min(threshold, std::max(-threshold, linear));
    // Compared here: GCC 12 makes no vector of a bool that was computed before.
    const float numerator = l1 == 0.0f ? -linear : clamped - linear;
    weight = numerator / ((new_power + summand_1) / divisor + summand_2);
  }

  Power power;
  float factor;
  float divisor;
  float threshold;
  float l1;
  float summand_1;
  float summand_2;
};

// n' = n * r + (1 - r) * (g^2 + epsilon)
// m' = b1 * m + sqrt(1 - b1^2) * (g / sqrt(n'));  w' = w - lr * m'
struct LapropRule {
  static constexpr int kNumSlots = 2;  // mu, nu
  static constexpr int kNumHyperparameters = 4;

  JTE_HOST_DEVICE explicit LapropRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        b1(hyperparameters[1]),
        scale(std::sqrt(1.0f - b1 * b1)),
        decay_rate(hyperparameters[2]),
        one_minus_decay_rate(1.0f - decay_rate),
        epsilon(hyperparameters[3]) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [mu, nu] = slots;
    nu = nu * decay_rate + one_minus_decay_rate * (grad * grad + epsilon);
    mu = b1 * mu + scale * (grad / std::sqrt(nu));
    weight -= learning_rate * mu;
  }

  float learning_rate;
  float b1;
  float scale;
  float decay_rate;
  float one_minus_decay_rate;
  float epsilon;
};

// k' = k + 1;  f = min((max(t, 1) / k')^rho, max_lr_multiplier);  a' = a + g^2
// w' = w - lr * ((g * f) / sqrt(a') + (l1 * sign(w) + l2 * w))
template <typename Power>
struct F2aRule {
  static constexpr int kNumSlots = 2;  // accumulator, local_step
  static constexpr int kNumHyperparameters = 6;

  JTE_HOST_DEVICE static float Exponent(const float* hyperparameters) {
    return hyperparameters[1];
  }

  JTE_HOST_DEVICE explicit F2aRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        power(Exponent(hyperparameters)),
        l1(hyperparameters[2]),
        l2(hyperparameters[3]),
        max_lr_multiplier(hyperparameters[4]),
        global_step(std::max(hyperparameters[5], 1.0f)) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [accumulator, local_step] = slots;
    local_step += 1.0f;
    const float multiplier =
        Least(power(global_step / local_step), max_lr_multiplier);
    accumulator += grad * grad;
    const float decay = l1 * Sign(weight) + l2 * weight;
    weight -=
        learning_rate * ((grad * multiplier) / std::sqrt(accumulator) + decay);
  }

  float learning_rate;
  Power power;
  float l1;
  float l2;
  float max_lr_multiplier;
  float global_step;
};

// m' = decay * m + g;  w' = w - lr * m', or lr * (g + decay * m') with
// use_nesterov
struct MomentumRule {
  static constexpr int kNumSlots = 1;  // momentum
  static constexpr int kNumHyperparameters = 3;

  JTE_HOST_DEVICE explicit MomentumRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        decay(hyperparameters[1]),
        use_nesterov(hyperparameters[2] != 0.0f) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [momentum] = slots;
    momentum = decay * momentum + grad;
    const float ahead = grad + decay * momentum;
    weight -= learning_rate * (use_nesterov ? ahead : momentum);
  }

  float learning_rate;
  float decay;
  bool use_nesterov;
};

// w' = w - lr * sign(beta_1 * m + (1 - beta_1) * g)
// m' = beta_2 * m + (1 - beta_2) * g
struct LionRule {
  static constexpr int kNumSlots = 1;  // momentum
  static constexpr int kNumHyperparameters = 3;

  JTE_HOST_DEVICE explicit LionRule(const float* hyperparameters)
      : learning_rate(hyperparameters[0]),
        beta_1(hyperparameters[1]),
        one_minus_beta_1(1.0f - beta_1),
        beta_2(hyperparameters[2]),
        one_minus_beta_2(1.0f - beta_2) {}

  JTE_HOST_DEVICE void Step(float grad, float& weight,
                            Slots<kNumSlots>& slots) const {
    auto& [momentum] = slots;
    weight -= learning_rate * Sign(beta_1 * momentum + one_minus_beta_1 * grad);
    momentum = beta_2 * momentum + one_minus_beta_2 * grad;
  }

  float learning_rate;
  float beta_1;
  float one_minus_beta_1;
  float beta_2;
  float one_minus_beta_2;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_UPDATE_RULES_H_
