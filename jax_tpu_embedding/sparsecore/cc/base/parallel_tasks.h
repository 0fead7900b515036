// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The tasks of one ParallelFor, which the calling thread and its helpers run
// together. Executors differ only in where helpers come from.
//
//   const auto tasks = std::make_shared<ParallelTasks>(n, task);
//   ...                // helpers that keep `tasks` and call tasks->Run()
//   tasks->Run();      // the calling thread takes part
//   tasks->Finish();
//
// Threading: any number of threads may call Run; one calls Finish.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_PARALLEL_TASKS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_PARALLEL_TASKS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace jte {

class ParallelTasks {
 public:
  // task(i) for i in [0, n). `task` must outlive the call of Finish, and no
  // more: a helper that starts later finds nothing to do and does not touch it.
  ParallelTasks(int64_t n, const std::function<void(int64_t)>& task)
      : n_(n), task_(task) {}

  // Runs tasks until none is left to begin. After an exception none is.
  void Run() noexcept {
    for (int64_t i = next_++; i < n_; i = next_++) {
      int64_t num_done = 1;
      try {
        task_(i);
      } catch (...) {
        if (!has_failed_.test_and_set()) exception_ = std::current_exception();
        // Tasks that nobody has begun are done with.
        num_done += std::max<int64_t>(n_ - next_.exchange(n_), 0);
      }
      if ((num_done_ += num_done) == n_) num_done_.notify_all();
    }
  }

  // Waits for the tasks that helpers have begun, then throws the first
  // exception of a task, if there was one. To be called after Run.
  void Finish() {
    for (int64_t done = num_done_; done < n_; done = num_done_) {
      num_done_.wait(done);
    }
    if (exception_) std::rethrow_exception(std::move(exception_));
  }

 private:
  const int64_t n_;
  const std::function<void(int64_t)>& task_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int64_t> num_done_ = 0;
  std::atomic_flag has_failed_;
  // Written before its task counts as done, read once all are.
  std::exception_ptr exception_;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_PARALLEL_TASKS_H_
