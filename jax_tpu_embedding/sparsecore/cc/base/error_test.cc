// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace jte {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("n must be even, got ", n, ".");
  return n / 2;
}

Result<void> CountTo(int n, int& count) {
  for (int i = 0; i < n; ++i) {
    JTE_RETURN_IF_ERROR(Half(2 * i));
    ++count;
  }
  JTE_RETURN_IF_ERROR(Half(n));
  ++count;
  return {};
}

Result<int> Eighth(int n) {
  JTE_ASSIGN_OR_RETURN(const int half, Half(n));
  int quarter = 0;
  JTE_ASSIGN_OR_RETURN(quarter, Half(half));
  return Half(quarter);
}

TEST(ReturnIfErrorTest, GoesOnAfterAValue) {
  int count = 0;
  EXPECT_TRUE(CountTo(4, count).has_value());
  EXPECT_EQ(count, 5);
}

TEST(ReturnIfErrorTest, ReturnsTheFirstError) {
  int count = 0;
  const Result<void> result = CountTo(3, count);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, "n must be even, got 3.");
  EXPECT_EQ(count, 3);
}

TEST(ReturnIfErrorTest, TakesAVariableAndLeavesItAsItIsWhenConstant) {
  const auto check = [](const Result<int>& result) -> Result<void> {
    JTE_RETURN_IF_ERROR(result);
    return {};
  };
  const Result<int> odd = Half(1);
  EXPECT_EQ(check(odd).error().message, odd.error().message);
  EXPECT_EQ(odd.error().message, "n must be even, got 1.");
  EXPECT_TRUE(check(Half(2)).has_value());
}

TEST(ReturnIfErrorTest, EvaluatesOnce) {
  int calls = 0;
  const auto twice = [&calls]() -> Result<void> {
    const auto fail = [&calls]() -> Result<std::pair<int, int>> {
      ++calls;
      return NotFound("nothing");
    };
    JTE_RETURN_IF_ERROR(fail());
    return {};
  };
  EXPECT_EQ(twice().error().code, ErrorCode::kNotFound);
  EXPECT_EQ(calls, 1);
}

TEST(ReturnIfErrorTest, IsOneStatement) {
  const auto check = [](bool is_checked, int n) -> Result<void> {
    if (is_checked)
      JTE_RETURN_IF_ERROR(Half(n));
    else
      JTE_RETURN_IF_ERROR(Half(2 * n));
    return {};
  };
  EXPECT_FALSE(check(true, 1).has_value());
  EXPECT_TRUE(check(false, 1).has_value());
}

TEST(AssignOrReturnTest, AssignsToDeclarationsAndToVariables) {
  EXPECT_EQ(Eighth(40), 5);
}

TEST(AssignOrReturnTest, ReturnsTheErrorOfEachStep) {
  EXPECT_EQ(Eighth(7).error().message, "n must be even, got 7.");
  EXPECT_EQ(Eighth(14).error().message, "n must be even, got 7.");
  EXPECT_EQ(Eighth(28).error().message, "n must be even, got 7.");
}

TEST(AssignOrReturnTest, MovesValues) {
  const auto make = []() -> Result<std::unique_ptr<int>> {
    return std::make_unique<int>(3);
  };
  const auto read = [&make]() -> Result<int> {
    JTE_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, make());
    return *value;
  };
  EXPECT_EQ(read(), 3);
}

TEST(AssignOrReturnTest, TakesExpressionsWithCommas) {
  const auto sum = []() -> Result<int> {
    JTE_ASSIGN_OR_RETURN(const auto pair,
                         Result<std::pair<int, int>>({Half(2).value(), 4}));
    return pair.first + pair.second;
  };
  EXPECT_EQ(sum(), 5);
}

}  // namespace
}  // namespace jte
