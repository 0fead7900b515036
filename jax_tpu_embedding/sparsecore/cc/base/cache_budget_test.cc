// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"

#include <cstddef>
#include <cstdlib>
#include <limits>

#include "gtest/gtest.h"

namespace jte {
namespace {

TEST(CacheBudgetTest, GivesNoMoreThanTheLimit) {
  CacheBudget budget(100);
  EXPECT_TRUE(budget.Take(60));
  EXPECT_FALSE(budget.Take(41));
  EXPECT_FALSE(budget.Take(std::numeric_limits<size_t>::max()));
  EXPECT_TRUE(budget.Take(40));
  EXPECT_EQ(budget.used_bytes(), 100);
  budget.SetLimitBytes(50);
  EXPECT_FALSE(budget.Take(0)) << "more is used than may be";
  budget.Return(60);
  EXPECT_TRUE(budget.Take(10));
  EXPECT_EQ(budget.used_bytes(), 50);
}

TEST(CacheBudgetTest, HasTheLimitOfTheEnvironment) {
  struct Case {
    const char* value;
    size_t limit_bytes;
  };
  for (const auto& [value, limit_bytes] :
       {Case{"0", 0}, Case{"3", 3 << 20},
        Case{"", CacheBudget::kDefaultLimitBytes},
        Case{"-1", CacheBudget::kDefaultLimitBytes},
        Case{"1.5", CacheBudget::kDefaultLimitBytes},
        Case{"99999999999999999", CacheBudget::kDefaultLimitBytes}}) {
    ASSERT_EQ(setenv("SPARSECORE_CACHE_LIMIT_MIB", value, /*overwrite=*/1), 0);
    EXPECT_EQ(CacheBudget().limit_bytes(), limit_bytes) << value;
  }
  unsetenv("SPARSECORE_CACHE_LIMIT_MIB");
  EXPECT_EQ(CacheBudget().limit_bytes(), CacheBudget::kDefaultLimitBytes);
}

}  // namespace
}  // namespace jte
