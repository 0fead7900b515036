// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"

#include <cstdint>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor_contract.h"

namespace jte::ffi {
namespace {

// Starts what is scheduled on threads of its own, now or never, and keeps what
// it did not start.
class FakePool {
 public:
  FakePool(int64_t num_threads, bool starts)
      : num_threads_(num_threads), starts_(starts) {}

  int64_t num_threads() const { return num_threads_; }

  void Schedule(std::function<void()> work) {
    if (num_refused > 0) {
      --num_refused;
      throw std::bad_alloc();
    }
    if (starts_) {
      threads_.emplace_back(work);
    } else {
      waiting.push_back(work);
    }
  }

  int64_t num_refused = 0;  // of the next calls of Schedule
  std::vector<std::function<void()>> waiting;

 private:
  int64_t num_threads_;
  bool starts_;
  std::vector<std::jthread> threads_;
};

TEST(ThreadPoolExecutorTest, KeepsTheContract) {
  FakePool pool(4, /*starts=*/true);
  BasicThreadPoolExecutor executor(pool);
  ExpectKeepsExecutorContract(executor);
}

TEST(ThreadPoolExecutorTest, NeedsNoPoolThread) {
  FakePool pool(0, /*starts=*/false);
  BasicThreadPoolExecutor executor(pool);
  ExpectKeepsExecutorContract(executor);
  EXPECT_TRUE(pool.waiting.empty());
}

TEST(ThreadPoolExecutorTest, DoesNotWaitForAPoolThatNeverStarts) {
  FakePool pool(4, /*starts=*/false);
  BasicThreadPoolExecutor executor(pool);
  ExpectKeepsExecutorContract(executor);
  // Those that start after all find nothing to do.
  for (const auto& work : pool.waiting) work();
}

TEST(ThreadPoolExecutorTest, DoesWithoutHelpersThatCannotBeScheduled) {
  FakePool pool(4, /*starts=*/true);
  BasicThreadPoolExecutor executor(pool);
  pool.num_refused = 1;
  ExpectRunsEveryTaskOnce(executor);
  EXPECT_EQ(pool.num_refused, 0);
}

TEST(ThreadPoolExecutorTest, CountsTheCallingThreadAsOneOfThePool) {
  FakePool none(0, true), four(4, true);
  EXPECT_EQ(BasicThreadPoolExecutor(none).num_threads(), 1);
  EXPECT_EQ(BasicThreadPoolExecutor(four).num_threads(), 4);
}

}  // namespace
}  // namespace jte::ffi
