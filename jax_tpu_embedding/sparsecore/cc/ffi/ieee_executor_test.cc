// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/ieee_executor.h"

#include <cfenv>
#include <cstdint>
#include <functional>

#include "gtest/gtest.h"

namespace jte::ffi {
namespace {

class InlineExecutor final : public Executor {
 public:
  int num_threads() const override { return 3; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < n; ++i) task(i);
  }
};

// The rounding mode stands for the whole environment: every machine has it.
TEST(IeeeExecutorTest, TasksRunInTheDefaultEnvironment) {
  InlineExecutor inline_executor;
  IeeeExecutor executor(inline_executor);
  EXPECT_EQ(executor.num_threads(), 3);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  int num_tasks = 0;
  executor.ParallelFor(2, [&num_tasks](int64_t) {
    num_tasks += std::fegetround() == FE_TONEAREST;
  });
  const int rounding_afterwards = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(num_tasks, 2);
  EXPECT_EQ(rounding_afterwards, FE_UPWARD);
}

}  // namespace
}  // namespace jte::ffi
