// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to ids and weights that no table row, and no gain, can come
// from. Python: FeatureSpec.out_of_range_ids and .non_finite_weights.
//
// Kernels for GPUs include this: no more than C++20.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_POLICIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_POLICIES_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte::convert {

// For an id outside [0, vocabulary_size).
enum class IdPolicy {
  kError,
  kDrop,    // as if the sample did not have it: combiners do not count it
  kClamp,   // the nearest row: 0 or vocabulary_size - 1
  kModulo,  // the remainder in [0, vocabulary_size): -1 is the last row
};

// For a weight that is NaN or infinite.
enum class WeightPolicy {
  kError,
  kDrop,   // as if the sample did not have its id
  kClamp,  // NaN becomes 0, an infinity the largest float of its sign
  kKeep,
};

template <typename Id>
JTE_HOST_DEVICE bool IsInRange(Id id, int64_t vocabulary_size) {
  return std::cmp_greater_equal(id, 0) && std::cmp_less(id, vocabulary_size);
}

// The row in the range that is nearest to an id outside of it.
template <typename Id>
JTE_HOST_DEVICE int32_t Nearest(Id id, int64_t vocabulary_size) {
  return std::cmp_less(id, 0) ? 0 : static_cast<int32_t>(vocabulary_size - 1);
}

// The remainder in [0, vocabulary_size), computed in the type of the id: the
// largest uint64 is no int64. A vocabulary size fits them all.
template <typename Id>
JTE_HOST_DEVICE int32_t Modulo(Id id, int64_t vocabulary_size) {
  const auto remainder =
      static_cast<int64_t>(id % static_cast<Id>(vocabulary_size));
  return static_cast<int32_t>(remainder < 0 ? remainder + vocabulary_size
                                            : remainder);
}

JTE_HOST_DEVICE inline bool IsFinite(float weight) {
  return (std::bit_cast<uint32_t>(weight) & 0x7fffffff) < 0x7f800000;
}

// What kClamp makes of a weight that is not finite.
JTE_HOST_DEVICE inline float Clamp(float weight) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (weight > 0.0f) return kLargest;
  return weight < 0.0f ? -kLargest : 0.0f;
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_POLICIES_H_
