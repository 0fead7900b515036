// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Which samples of a stack's features a SparseCore gets.
//
// Two features A and B with four samples each, one device, two SparseCores:
//
//   kSplitThenStack   SC 0: A0 A1 B0 B1   SC 1: A2 A3 B2 B3
//   kStackThenSplit   SC 0: A0 A1 A2 A3   SC 1: B0 B1 B2 B3
//
// Activations and gradients are the same either way. Splitting first gives
// every SparseCore the same work; stacking first needs batches that divide by
// the SparseCores only in sum.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_FEATURE_STACKING_STRATEGY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_FEATURE_STACKING_STRATEGY_H_

#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/enum_names.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte {

enum class FeatureStackingStrategy { kSplitThenStack, kStackThenSplit };

// The strategy of a name in upper or lower case.
//
// Errors: any other name; the message lists the choices.
inline Result<FeatureStackingStrategy> ParseFeatureStackingStrategy(
    std::string_view name) {
  constexpr EnumNames<FeatureStackingStrategy, 2> kNames = {{
      {"SPLIT_THEN_STACK", FeatureStackingStrategy::kSplitThenStack},
      {"STACK_THEN_SPLIT", FeatureStackingStrategy::kStackThenSplit},
  }};
  return ParseEnum("feature_stacking_strategy", kNames, name,
                   LetterCase::kIgnored);
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_FEATURE_STACKING_STRATEGY_H_
