// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

#include <atomic>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace jte {
namespace {

TEST(ThreadExecutorTest, RunsEveryTaskOnce) {
  for (int num_threads : {1, 2, 7}) {
    for (int64_t n : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(n);
      ThreadExecutor(num_threads).ParallelFor(n, [&runs](int64_t i) {
        ++runs[i];
      });
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(runs[i], 1) << i;
    }
  }
}

TEST(ThreadExecutorTest, HasAtLeastOneCpu) {
  EXPECT_GE(NumSchedulableCpus(), 1);
}

}  // namespace
}  // namespace jte
