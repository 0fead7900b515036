// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "jax_tpu_embedding/sparsecore/cc/base/cpu_quota.h"
#include "jax_tpu_embedding/sparsecore/cc/base/parallel_tasks.h"

namespace jte {

ThreadExecutor::~ThreadExecutor() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
}

void ThreadExecutor::ParallelFor(int64_t n,
                                 const std::function<void(int64_t)>& task) {
  const int64_t num_helpers = std::min<int64_t>(num_threads_, n) - 1;
  if (num_helpers <= 0) {
    for (int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  const auto tasks = std::make_shared<ParallelTasks>(n, task);
  {
    const std::lock_guard lock(mutex_);
    tasks_ = tasks;
  }
  // No more are woken than there is work for.
  for (int64_t t = 0; t < num_helpers; ++t) changed_.notify_one();
  StartHelpers(num_helpers);
  tasks->Run();
  tasks->Finish();
}

void ThreadExecutor::StartHelpers(int64_t count) {
  try {
    helpers_.reserve(count);
    while (num_helpers() < count) helpers_.emplace_back([this] { Help(); });
  } catch (const std::exception&) {
    // The system is out of threads, or of memory for them: those that run, the
    // calling one at least, do the work.
  }
}

void ThreadExecutor::Help() {
  std::shared_ptr<ParallelTasks> tasks;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [this, &tasks] { return is_ending_ || tasks_ != tasks; });
      if (is_ending_) return;
      tasks = tasks_;
    }
    tasks->Run();
  }
}

int NumSchedulableCpus() {
  // Read once: it costs more than a small call does, and seldom changes.
  static const int kQuota = CpuQuota().value_or(INT_MAX);
  cpu_set_t cpus;
  const int num_cpus =
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0
          ? CPU_COUNT(&cpus)
          : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(num_cpus, 1, kQuota);
}

}  // namespace jte
