// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a conversion is asked for, what it returns beside the buffers, and the
// loop over all that it converts.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte::convert {

struct ConvertOptions {
  Topology topology;
  FeatureStackingStrategy feature_stacking_strategy =
      FeatureStackingStrategy::kSplitThenStack;
  // Whether ids beyond a limit or a buffer are dropped and counted, instead of
  // being an error.
  bool allow_id_dropping = false;
  bool enable_minibatching = false;
  // Names this batch's reductions between hosts; never changes an output.
  int32_t batch_number = 0;
};

struct Conversion {
  std::vector<StackStats> stats;  // one per stack
  int num_minibatches = 1;
};

inline int64_t NumLocalScs(const Topology& topology) {
  return topology.local_device_count * topology.num_sc_per_device;
}

// There is one task per stack and local SparseCore. `local_sc` counts the
// SparseCores of this process, device by device; `index` the tasks of all
// stacks, stack by stack.
struct SparseCoreTask {
  int64_t stack;
  int64_t local_sc;
  int64_t index;
};

// Runs `run` for every SparseCore of every stack; all have one topology.
// Returns the first error, in the order of `index`; running out of memory is
// one.
inline Result<void> ForEachSparseCore(
    std::span<const StackPlan> stacks, Executor& executor,
    const std::function<Result<void>(const SparseCoreTask&)>& run) {
  if (stacks.empty()) return {};
  return CatchOutOfMemory([stacks, &executor, &run]() -> Result<void> {
    const int64_t num_local_scs = NumLocalScs(stacks.front().topology);
    std::vector<std::optional<Error>> errors(stacks.size() * num_local_scs);
    executor.ParallelFor(std::ssize(errors),
                         [num_local_scs, &run, &errors](int64_t i) {
                           auto done = run({.stack = i / num_local_scs,
                                            .local_sc = i % num_local_scs,
                                            .index = i});
                           if (!done) errors[i] = std::move(done).error();
                         });
    for (std::optional<Error>& error : errors) {
      if (error) return std::unexpected(*std::move(error));
    }
    return {};
  });
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CONVERSION_H_
