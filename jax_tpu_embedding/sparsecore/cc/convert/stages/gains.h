// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The gains of a SparseCore's ids, by the formulas of combiner.h, and what the
// payloads of sorted elements stand for.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_GAINS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_GAINS_H_

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"

namespace jte::convert {

struct Slice;

inline Result<Combiner> ParseCombiner(std::string_view name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtn;
  return InvalidArgument("unknown combiner '", name,
                         "'; choose 'sum', 'mean' or 'sqrtn'.");
}

// What every weight of a sample is divided by. Any two NaNs are equal for us.
inline float WeightDivisor(Combiner combiner, std::span<const float> weights) {
  float sum = 0.0f;
  switch (combiner) {
    case Combiner::kSum:
      return 1.0f;
    case Combiner::kMean:
      for (float weight : weights) sum += weight;
      return sum;
    case Combiner::kSqrtn:
      for (float weight : weights) sum = AddSquare(sum, weight);
      return std::sqrt(sum);
  }
  return 1.0f;
}

// ---- What the payload of a sorted element stands for: a sample and a gain.
//
// Without weights all ids of a sample have the same gain, so the payload is the
// sample itself. With weights it has the position of the id on its SparseCore.

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

// ---- The gains of a slice's ids, in two steps: a factor for each sample, then
// a gain for each id.

// factors[s] becomes that of sample s of the SparseCore: without weights the
// gain of its ids, with weights what these are divided by. That of a sample
// without ids is never used.
void WriteSampleFactors(Combiner combiner, const Slice& slice,
                        std::span<float> factors);

// Writes the gains of the n ids from `begin` on, whose samples are `samples`.
// Reads factors unless the slice has weights and the combiner is sum.
void WriteIdGains(Combiner combiner, const Slice& slice, int64_t begin,
                  int64_t n, const uint32_t* samples,
                  std::span<const float> factors, float* gains);

// Puts samples and gains next to each other.
void ZipIds(const uint32_t* samples, const float* gains, int64_t n,
            WeightedId* ids);

bool AreFinite(std::span<const float> weights);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_GAINS_H_
