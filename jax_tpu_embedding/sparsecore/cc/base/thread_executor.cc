// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

namespace jte {

void ThreadExecutor::ParallelFor(int64_t n,
                                 const std::function<void(int64_t)>& task) {
  std::atomic<int64_t> next = 0;
  const auto work = [&next, &task, n] {
    for (int64_t i = next++; i < n; i = next++) task(i);
  };
  const int64_t num_helpers = std::min<int64_t>(num_threads_, n) - 1;
  std::vector<std::jthread> helpers;
  for (int64_t t = 0; t < num_helpers; ++t) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // The system is out of threads; those that run do the work.
    }
  }
  work();
}

int NumSchedulableCpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    return std::max(1, CPU_COUNT(&cpus));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace jte
