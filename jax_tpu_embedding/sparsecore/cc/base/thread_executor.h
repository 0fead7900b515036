// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// An Executor that starts its threads for each call and joins them before it
// returns.
//
// A process-wide pool would save some 20 us per call and thread. It would also
// outlive its users, and hang in a child process that forked after the pool was
// made, which is how Python data loaders work. Callers pass small work to an
// InlineExecutor instead.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_

#include <cstdint>
#include <functional>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte {

class ThreadExecutor final : public Executor {
 public:
  // num_threads >= 1 counts the calling thread.
  explicit ThreadExecutor(int num_threads) : num_threads_(num_threads) {}

  int num_threads() const override { return num_threads_; }

  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override;

 private:
  int num_threads_;
};

// The number of CPUs this process may run on; >= 1.
int NumSchedulableCpus();

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_
