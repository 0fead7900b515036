// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// One task per (stack, local SparseCore) of a step.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_

#include <cstdint>
#include <functional>
#include <new>
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
// Returns the first error, in the order of `index`. Memory is the one thing
// that a task can run out of, which becomes an error.
inline Result<void> ForEachSparseCore(
    std::span<const StackPlan> stacks, Executor& executor,
    const std::function<Result<void>(const SparseCoreTask&)>& run) {
  if (stacks.empty()) return {};
  const int64_t num_local_scs = NumLocalScs(stacks.front().topology);
  std::vector<std::optional<Error>> errors(stacks.size() * num_local_scs);
  executor.ParallelFor(std::ssize(errors), [stacks, num_local_scs, &run,
                                            &errors](int64_t i) {
    const SparseCoreTask task = {
        .stack = i / num_local_scs, .local_sc = i % num_local_scs, .index = i};
    try {
      if (auto done = run(task); !done) errors[i] = std::move(done).error();
    } catch (const std::bad_alloc&) {
      errors[i] = FailedPrecondition("Stack '", stacks[task.stack].spec.name,
                                     "': out of memory for converting its "
                                     "ids. Use smaller batches.")
                      .error();
    }
  });
  for (std::optional<Error>& error : errors) {
    if (error) return std::unexpected(*std::move(error));
  }
  return {};
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_FOR_EACH_SPARSE_CORE_H_
