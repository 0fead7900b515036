// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the payload of a sorted element stands for: a sample and a gain.
//
// Without weights all ids of a sample have the same gain, so the payload is the
// sample itself. With weights it is the position of the id on its SparseCore.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_GAIN_SOURCE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_GAIN_SOURCE_H_

#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"

namespace jte {

struct WeightedId {
  int32_t sample;
  float gain;
};

// No weights, combiner sum: every gain is 1.
struct UnitGains {
  static constexpr bool kPayloadIsSample = true;

  WeightedId operator[](uint32_t payload) const {
    return {.sample = static_cast<int32_t>(payload), .gain = 1.0f};
  }
};

// No weights: one gain per sample.
struct SampleGains {
  static constexpr bool kPayloadIsSample = true;

  std::span<const float> gains;

  WeightedId operator[](uint32_t payload) const {
    return {.sample = static_cast<int32_t>(payload), .gain = gains[payload]};
  }
};

// Weights, and v ids in every sample: only the gain of each id is stored.
struct MatrixGains {
  static constexpr bool kPayloadIsSample = false;

  std::span<const float> gains;
  Divisor valency;

  WeightedId operator[](uint32_t payload) const {
    return {.sample = static_cast<int32_t>(valency.Quotient(payload)),
            .gain = gains[payload]};
  }
};

// Weights, and samples of any size: sample and gain of each id.
struct IdGains {
  static constexpr bool kPayloadIsSample = false;

  std::span<const WeightedId> ids;

  WeightedId operator[](uint32_t payload) const { return ids[payload]; }
};

using GainSource = std::variant<UnitGains, SampleGains, MatrixGains, IdGains>;

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_GAIN_SOURCE_H_
