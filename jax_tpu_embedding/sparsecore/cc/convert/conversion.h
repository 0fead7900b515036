// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a conversion is asked for, and what it returns beside the buffers.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_

#include <cstdint>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte {

struct ConvertOptions {
  Topology topology;
  FeatureStackingStrategy feature_stacking_strategy =
      FeatureStackingStrategy::kSplitThenStack;
  // Whether ids beyond a limit or a buffer are dropped and counted, instead of
  // being an error.
  bool allow_id_dropping = false;
  bool enable_minibatching = false;
  // Names this step's reductions between hosts; never changes an output.
  int32_t batch_number = 0;
};

struct Conversion {
  std::vector<StackStats> stats;  // one per stack
  int num_minibatches = 1;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_
