// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// One task per (stack, local SparseCore) of a step.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {

inline int64_t NumLocalScs(const Topology& topology) {
  return topology.local_device_count * topology.num_sc_per_device;
}

// Where a task is: `local_sc` counts the SparseCores of this process, device
// by device; `index` the tasks of all stacks, stack by stack.
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

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_
