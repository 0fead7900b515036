// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the payload of a sorted element stands for: a sample and a gain.
//
// Without weights all ids of a sample have the same gain, so the payload is the
// sample itself. With weights it has the position of the id on its SparseCore.

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

// Weights, and samples of any size, where sample and position fit a payload
// together:
//
//     31        position_bits           0
//     | sample | position               |
struct PackedGains {
  static constexpr bool kPayloadIsSample = false;

  static uint32_t Payload(uint32_t sample, uint32_t position,
                          int position_bits) {
    return (sample << position_bits) | position;
  }

  uint32_t PositionOf(uint32_t payload) const {
    return payload & ((uint32_t{1} << position_bits) - 1);
  }

  std::span<const float> gains;
  int position_bits;  // below 32

  WeightedId operator[](uint32_t payload) const {
    return {.sample = static_cast<int32_t>(payload >> position_bits),
            .gain = gains[PositionOf(payload)]};
  }
};

// Weights, where they do not fit: sample and gain of each id.
struct IdGains {
  static constexpr bool kPayloadIsSample = false;

  std::span<const WeightedId> ids;

  WeightedId operator[](uint32_t payload) const { return ids[payload]; }
};

using GainSource =
    std::variant<UnitGains, SampleGains, MatrixGains, PackedGains, IdGains>;

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_GAIN_SOURCE_H_
