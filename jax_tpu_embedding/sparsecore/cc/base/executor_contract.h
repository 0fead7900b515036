// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// For tests: what executor.h promises of every Executor.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_CONTRACT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_CONTRACT_H_

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte {

inline void ExpectRunsEveryTaskOnce(Executor& executor) {
  for (int64_t n : {0, 1, 3, 1000}) {
    std::vector<std::atomic<int>> runs(n);
    executor.ParallelFor(n, [&runs](int64_t i) { ++runs[i]; });
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(runs[i], 1) << i;
  }
}

// Tasks refer to locals of this function: if one still ran when ParallelFor
// throws, the counts would not agree.
inline void ExpectThrowsWhatATaskThrows(Executor& executor) {
  constexpr int64_t kNumTasks = 1000;
  for (int64_t first_bad : {int64_t{0}, int64_t{1}, kNumTasks - 1}) {
    std::atomic<int64_t> num_begun = 0;
    std::atomic<int64_t> num_ended = 0;
    const auto task = [&num_begun, &num_ended, first_bad](int64_t i) {
      ++num_begun;
      if (i >= first_bad) {
        ++num_ended;
        throw std::runtime_error("a task");
      }
      ++num_ended;
    };
    std::string message;
    try {
      executor.ParallelFor(kNumTasks, task);
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "a task");
    EXPECT_EQ(num_begun, num_ended) << "A task runs on.";
    // The first bad one stops the rest: each thread may have one in hand.
    EXPECT_LE(num_begun, first_bad + 2 * executor.num_threads());
    // Nothing is left of it.
    ExpectRunsEveryTaskOnce(executor);
  }
}

inline void ExpectKeepsExecutorContract(Executor& executor) {
  EXPECT_GE(executor.num_threads(), 1);
  ExpectRunsEveryTaskOnce(executor);
  ExpectThrowsWhatATaskThrows(executor);
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_CONTRACT_H_
