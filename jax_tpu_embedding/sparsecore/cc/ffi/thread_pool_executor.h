// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// An Executor on the thread pool that XLA hands to a CPU handler.
//
// The handler's thread does its share of the work and waits only for tasks that
// a pool thread has already begun. A pool whose threads are busy, or that has
// none (several host devices on few cores), therefore costs speed and can never
// block a step.
//
//   ffi::Error Handler(ffi::ThreadPool pool, ...) {
//     ThreadPoolExecutor executor(pool);
//     return ToFfiError(Lookup(..., executor));
//   }

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "xla/ffi/api/ffi.h"

namespace jte {

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
    // Shared with the helpers: one that starts after this call returned still
    // reads it, finds nothing to do, and does not touch `task`.
    const auto work = std::make_shared<Work>(n, &task);
    for (int64_t t = 0; t < num_helpers; ++t) {
      pool_.Schedule([work] { work->Run(); });
    }
    work->Run();
    work->WaitUntilDone();
  }

 private:
  class Work {
   public:
    Work(int64_t n, const std::function<void(int64_t)>* task)
        : n_(n), task_(task) {}

    void Run() {
      for (int64_t i = next_++; i < n_; i = next_++) {
        (*task_)(i);
        if (++num_done_ == n_) num_done_.notify_all();
      }
    }

    void WaitUntilDone() const {
      for (int64_t done = num_done_; done < n_; done = num_done_) {
        num_done_.wait(done);
      }
    }

   private:
    const int64_t n_;
    const std::function<void(int64_t)>* const task_;  // valid until all is done
    std::atomic<int64_t> next_ = 0;
    std::atomic<int64_t> num_done_ = 0;
  };

  Pool& pool_;
};

using ThreadPoolExecutor = BasicThreadPoolExecutor<xla::ffi::ThreadPool>;

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_THREAD_POOL_EXECUTOR_H_
