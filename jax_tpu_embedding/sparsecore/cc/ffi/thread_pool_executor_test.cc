// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jte {
namespace {

// Starts what is scheduled on threads of its own, now or never, and keeps what
// it did not start.
class FakePool {
 public:
  FakePool(int64_t num_threads, bool starts)
      : num_threads_(num_threads), starts_(starts) {}

  int64_t num_threads() const { return num_threads_; }

  void Schedule(std::function<void()> work) {
    if (starts_) {
      threads_.emplace_back(work);
    } else {
      waiting.push_back(work);
    }
  }

  std::vector<std::function<void()>> waiting;

 private:
  int64_t num_threads_;
  bool starts_;
  std::vector<std::jthread> threads_;
};

void ExpectRunsEveryTaskOnce(FakePool& pool) {
  BasicThreadPoolExecutor executor(pool);
  for (int64_t n : {0, 1, 3, 1000}) {
    std::vector<std::atomic<int>> runs(n);
    executor.ParallelFor(n, [&runs](int64_t i) { ++runs[i]; });
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(runs[i], 1) << i;
  }
}

TEST(ThreadPoolExecutorTest, RunsEveryTaskOnce) {
  FakePool pool(4, /*starts=*/true);
  ExpectRunsEveryTaskOnce(pool);
}

TEST(ThreadPoolExecutorTest, NeedsNoPoolThread) {
  FakePool pool(0, /*starts=*/false);
  ExpectRunsEveryTaskOnce(pool);
  EXPECT_TRUE(pool.waiting.empty());
}

TEST(ThreadPoolExecutorTest, DoesNotWaitForAPoolThatNeverStarts) {
  FakePool pool(4, /*starts=*/false);
  ExpectRunsEveryTaskOnce(pool);
  // Those that start after all find nothing to do.
  for (const auto& work : pool.waiting) work();
}

TEST(ThreadPoolExecutorTest, CountsTheCallingThreadAsOneOfThePool) {
  FakePool none(0, true), four(4, true);
  EXPECT_EQ(BasicThreadPoolExecutor(none).num_threads(), 1);
  EXPECT_EQ(BasicThreadPoolExecutor(four).num_threads(), 4);
}

}  // namespace
}  // namespace jte
