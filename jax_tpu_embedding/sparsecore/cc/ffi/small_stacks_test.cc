// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/small_stacks.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::ffi {
namespace {

TEST(ForEachStackTest, CallsEachWithOneThread) {
  std::vector<int64_t> called;
  const auto result =
      ForEachStack(3, "", [&](int64_t k, Executor& executor) -> Result<void> {
        EXPECT_EQ(executor.num_threads(), 1);
        called.push_back(k);
        return {};
      });
  EXPECT_TRUE(result);
  EXPECT_EQ(called, (std::vector<int64_t>{0, 1, 2}));
}

TEST(ForEachStackTest, NamesTheFirstThatFails) {
  const auto result =
      ForEachStack(4, "a\nb\nc\nd", [](int64_t k, Executor&) -> Result<void> {
        if (k < 2) return {};
        return FailedPrecondition("Is ", k, ".");
      });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(result.error().message, "In c: Is 2.");
}

TEST(ForEachStackTest, ThereMayBeFewerNames) {
  const auto result =
      ForEachStack(2, "a", [](int64_t k, Executor&) -> Result<void> {
        if (k < 1) return {};
        return InvalidArgument("Wrong.");
      });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "In : Wrong.");
}

}  // namespace
}  // namespace jte::ffi
