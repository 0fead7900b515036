// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_table.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"

namespace jte::convert {
namespace {

std::vector<uint32_t> StackRowsFrom(uint32_t first, uint32_t size) {
  std::vector<uint32_t> stack_rows(size);
  std::iota(stack_rows.begin(), stack_rows.end(), first);
  return stack_rows;
}

// Asks the table, and checks its answer.
void Find(BucketTable& table, const std::vector<uint32_t>& stack_rows) {
  std::vector<uint8_t> expected(stack_rows.size());
  FindBuckets(stack_rows, expected);
  std::vector<uint8_t> buckets(stack_rows.size());
  table.Find(stack_rows, buckets);
  EXPECT_EQ(buckets, expected);
}

TEST(BucketTableTest, IsMadeOnceAsManyStackRowsWereHashed) {
  const auto table = std::make_unique<BucketTable>();
  const auto half = StackRowsFrom(0, BucketTable::kNumStackRows / 2);
  Find(*table, half);
  Find(*table, {});
  EXPECT_FALSE(table->is_made());
  Find(*table, half);
  EXPECT_TRUE(table->is_made());
  Find(*table, StackRowsFrom(0, BucketTable::kNumStackRows));
}

TEST(BucketTableTest, StackRowsBeyondItAreHashed) {
  const auto table = std::make_unique<BucketTable>();
  const auto beyond =
      StackRowsFrom(BucketTable::kNumStackRows, BucketTable::kNumStackRows);
  const std::vector<uint32_t> first_beyond(BucketTable::kNumStackRows,
                                           BucketTable::kNumStackRows);
  for (const auto& stack_rows : {beyond, first_beyond}) {
    Find(*table, stack_rows);
    EXPECT_FALSE(table->is_made()) << "it would not have helped";
  }
  Find(*table, StackRowsFrom(0, BucketTable::kNumStackRows));
  ASSERT_TRUE(table->is_made());
  Find(*table, beyond);
  Find(*table, StackRowsFrom(BucketTable::kNumStackRows - 3, 6));
  Find(*table, {0x7fffffff, 0});
}

TEST(BucketTableTest, ThreadsShareIt) {
  const auto table = std::make_unique<BucketTable>();
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&table, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        Find(*table, StackRowsFrom((t * 200 + i) * 1000, 3000));
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(table->is_made());
}

}  // namespace
}  // namespace jte::convert
