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

std::vector<uint32_t> ColumnsFrom(uint32_t first, uint32_t size) {
  std::vector<uint32_t> columns(size);
  std::iota(columns.begin(), columns.end(), first);
  return columns;
}

// Asks the table, and checks its answer.
void Find(BucketTable& table, const std::vector<uint32_t>& columns) {
  std::vector<uint8_t> expected(columns.size());
  FindBuckets(columns, expected);
  std::vector<uint8_t> buckets(columns.size());
  table.Find(columns, buckets);
  EXPECT_EQ(buckets, expected);
}

TEST(BucketTableTest, IsMadeOnceAsManyColumnsWereHashed) {
  const auto table = std::make_unique<BucketTable>();
  const auto half = ColumnsFrom(0, BucketTable::kNumColumns / 2);
  Find(*table, half);
  Find(*table, {});
  EXPECT_FALSE(table->is_made());
  Find(*table, half);
  EXPECT_TRUE(table->is_made());
  Find(*table, ColumnsFrom(0, BucketTable::kNumColumns));
}

TEST(BucketTableTest, ColumnsBeyondItAreHashed) {
  const auto table = std::make_unique<BucketTable>();
  const auto beyond =
      ColumnsFrom(BucketTable::kNumColumns, BucketTable::kNumColumns);
  const std::vector<uint32_t> first_beyond(BucketTable::kNumColumns,
                                           BucketTable::kNumColumns);
  for (const auto& columns : {beyond, first_beyond}) {
    Find(*table, columns);
    EXPECT_FALSE(table->is_made()) << "it would not have helped";
  }
  Find(*table, ColumnsFrom(0, BucketTable::kNumColumns));
  ASSERT_TRUE(table->is_made());
  Find(*table, beyond);
  Find(*table, ColumnsFrom(BucketTable::kNumColumns - 3, 6));
  Find(*table, {0x7fffffff, 0});
}

TEST(BucketTableTest, ThreadsShareIt) {
  const auto table = std::make_unique<BucketTable>();
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&table, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        Find(*table, ColumnsFrom((t * 200 + i) * 1000, 3000));
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(table->is_made());
}

}  // namespace
}  // namespace jte::convert
