// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// An Executor with threads of its own, which live as long as it does: as long
// as a call of the library.
//
// A process-wide pool would save some 20 us per call and thread. It would also
// outlive its users, and hang in a child process that forked after the pool was
// made, which is how Python data loaders work. Callers pass small work to an
// InlineExecutor instead.
//
// Threads are started when a ParallelFor first has work for them. Those that
// the system cannot start are done without.
//
// Threading: one ParallelFor at a time, hence none in a task of another.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/parallel_tasks.h"

namespace jte {

class ThreadExecutor final : public Executor {
 public:
  // num_threads >= 1 counts the calling thread.
  explicit ThreadExecutor(int num_threads) : num_threads_(num_threads) {}
  // Joins the threads.
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  int num_threads() const override { return num_threads_; }

  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override;

  // How many threads there are besides the calling one.
  int64_t num_helpers() const { return std::ssize(helpers_); }

 private:
  void StartHelpers(int64_t count);
  // What a helper does until the executor ends.
  void Help();

  const int num_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<ParallelTasks> tasks_;  // the last ones; guarded by mutex_
  bool is_ending_ = false;                // guarded by mutex_
  std::vector<std::jthread> helpers_;
};

// The number of CPUs this process may run on, or that it has time for by its
// control groups, if these are fewer (cpu_quota.h); >= 1.
int NumSchedulableCpus();

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_THREAD_EXECUTOR_H_
