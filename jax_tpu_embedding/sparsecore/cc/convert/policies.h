// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to ids and weights that no table row, and no gain, can come
// from. Python: FeatureSpec.out_of_range_ids and .non_finite_weights.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_POLICIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_POLICIES_H_

#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/enum_names.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte {

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

// Errors: any other name; the message lists the choices.
inline Result<IdPolicy> ParseIdPolicy(std::string_view name) {
  constexpr EnumNames<IdPolicy, 4> kNames = {{
      {"error", IdPolicy::kError},
      {"drop", IdPolicy::kDrop},
      {"clamp", IdPolicy::kClamp},
      {"modulo", IdPolicy::kModulo},
  }};
  return ParseEnum("out_of_range_ids", kNames, name);
}

inline Result<WeightPolicy> ParseWeightPolicy(std::string_view name) {
  constexpr EnumNames<WeightPolicy, 4> kNames = {{
      {"error", WeightPolicy::kError},
      {"drop", WeightPolicy::kDrop},
      {"clamp", WeightPolicy::kClamp},
      {"keep", WeightPolicy::kKeep},
  }};
  return ParseEnum("non_finite_weights", kNames, name);
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_POLICIES_H_
