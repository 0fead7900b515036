// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Gains: what a combiner makes of the weights of a sample.
//
// With k ids in a sample and weights w_0 .. w_(k-1), the gain of id i is
//
//   combiner   no weights     weights
//   sum        1              w_i
//   mean       1 / k          w_i / (w_0 + w_1 + ...)
//   sqrtn      1 / sqrt(k)    w_i / sqrt(w_0^2 + w_1^2 + ...)
//
// in float32, every operation rounded, sums from left to right. Where the
// divisor is zero, as it is if all weights are, so is the gain: the sample
// reads as one without ids. NaN and infinite weights give what IEEE 754 makes
// of them.
//
// Kernels for GPUs include this: no more than C++20.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_COMBINER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_COMBINER_H_

#include <cmath>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte::convert {

enum class Combiner { kSum, kMean, kSqrtn };

// The gain of every id of a sample with k ids and no weights; infinite for a
// mean of none.
JTE_HOST_DEVICE inline float UnweightedGain(Combiner combiner, int64_t k) {
  switch (combiner) {
    case Combiner::kSum:
      return 1.0f;
    case Combiner::kMean:
      return 1.0f / static_cast<float>(k);
    case Combiner::kSqrtn:
      return 1.0f / std::sqrt(static_cast<float>(k));
  }
  return 1.0f;
}

// The square and the sum are exact to double before they are rounded to
// float32. The buffer format fixes these bits, so keep them.
JTE_HOST_DEVICE inline float AddSquare(float sum, double weight) {
  return static_cast<float>(sum + weight * weight);
}

// The gain of an id with a weight, of which WeightDivisor is `divisor`. The
// division comes first, so that a loop of these needs no branch.
JTE_HOST_DEVICE inline float WeightedGain(float weight, float divisor) {
  const float gain = weight / divisor;
  return divisor == 0.0f ? 0.0f : gain;
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_COMBINER_H_
