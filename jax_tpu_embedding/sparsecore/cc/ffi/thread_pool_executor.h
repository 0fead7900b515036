// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// An Executor on the thread pool that XLA hands to a CPU handler.
//
// The handler's thread does its share of the work and waits only for tasks that
// a pool thread has already begun. A pool whose threads are busy, or that has
// none (several host devices on few cores), therefore costs speed and can never
// block a step.
//
//   xla::ffi::Error Handler(xla::ffi::ThreadPool pool, ...) {
//     ThreadPoolExecutor executor(pool);
//     return RunHandler(CheckedLookup, executor, ...);
//   }

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/parallel_tasks.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// Pool: num_threads() and Schedule(callable), as xla::ffi::ThreadPool; a
// template for the sake of the test.
template <typename Pool>
class BasicThreadPoolExecutor final : public Executor {
 public:
  // `pool` must outlive the executor.
  explicit BasicThreadPoolExecutor(Pool& pool) : pool_(pool) {}

  // XLA makes one pool thread per core, so the handler's thread counts as one
  // of them: one more would only take turns with the others.
  int num_threads() const override {
    return static_cast<int>(std::max<int64_t>(pool_.num_threads(), 1));
  }

  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    const int64_t num_helpers = std::min<int64_t>(num_threads(), n) - 1;
    if (num_helpers <= 0) {
      for (int64_t i = 0; i < n; ++i) task(i);
      return;
    }
    const auto tasks = std::make_shared<ParallelTasks>(n, task);
    ScheduleHelpers(num_helpers, tasks);
    tasks->Run();
    tasks->Finish();
  }

 private:
  void ScheduleHelpers(int64_t count,
                       const std::shared_ptr<ParallelTasks>& tasks) {
    try {
      for (int64_t t = 0; t < count; ++t) {
        pool_.Schedule([tasks] { tasks->Run(); });
      }
    } catch (const std::exception&) {
      // Out of memory for a helper: those that were scheduled, and the calling
      // thread, do the work.
    }
  }

  Pool& pool_;
};

using ThreadPoolExecutor = BasicThreadPoolExecutor<xla::ffi::ThreadPool>;

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_
