// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_split.h"

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

using Counts = std::array<int64_t, kMaxMinibatches>;

std::vector<std::pair<int64_t, int64_t>> Ranges(const MinibatchSplit& split) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t m = 0; m < split.size(); ++m) {
    ranges.emplace_back(split.begin(m), split.end(m));
  }
  return ranges;
}

TEST(MinibatchSplitTest, JoinsAllBucketsThatFit) {
  Counts counts = {};
  counts.fill(1);
  EXPECT_EQ(SplitBits(counts, kMaxMinibatches), 0);
  EXPECT_THAT(Ranges(MinibatchSplit(uint64_t{0})), ElementsAre(Pair(0, 64)));
}

TEST(MinibatchSplitTest, ABucketBeyondTheLimitStandsAlone) {
  Counts counts = {};
  counts[7] = 17;
  // Each of the nodes above it keeps its boundary.
  EXPECT_THAT(Ranges(MinibatchSplit(SplitBits(counts, 16))),
              ElementsAre(Pair(0, 4), Pair(4, 6), Pair(6, 7), Pair(7, 8),
                          Pair(8, 16), Pair(16, 32), Pair(32, 64)));
}

TEST(MinibatchSplitTest, KeepsEveryBoundaryIfNoTwoBucketsFit) {
  Counts counts = {};
  counts.fill(2);
  const uint64_t bits = SplitBits(counts, 3);
  EXPECT_EQ(bits, (uint64_t{1} << 63) - 1);
  EXPECT_EQ(MinibatchSplit(bits).size(), kMaxMinibatches);
}

// The example of the buffer format: stack rows 0 .. 4, 6, 8 on two SparseCores.
TEST(MinibatchSplitTest, KeepsTheBoundariesOfTheWorkedExample) {
  Counts sc0_partition0 = {};
  sc0_partition0[7] = sc0_partition0[9] = sc0_partition0[13] =
      sc0_partition0[34] = 1;
  EXPECT_THAT(Ranges(MinibatchSplit(SplitBits(sc0_partition0, 2))),
              ElementsAre(Pair(0, 8), Pair(8, 32), Pair(32, 64)));
}

TEST(MinibatchSplitTest, MinibatchesStayWithinTheLimit) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const int64_t limit = std::uniform_int_distribution(8, 100)(random);
    Counts counts;
    for (int64_t& count : counts) {
      count = std::uniform_int_distribution<int64_t>(0, 8)(random);
    }
    const MinibatchSplit split(SplitBits(counts, limit));
    int64_t previous_end = 0;
    for (int64_t m = 0; m < split.size(); ++m) {
      ASSERT_EQ(split.begin(m), previous_end);
      int64_t sum = 0;
      for (int64_t b = split.begin(m); b < split.end(m); ++b) sum += counts[b];
      EXPECT_LE(sum, limit);
      previous_end = split.end(m);
    }
    EXPECT_EQ(previous_end, kMaxMinibatches);
  }
}

TEST(MinibatchSplitTest, ATableNeedsTheBoundariesOfBothCountsOfAllPartitions) {
  PartitionTable table = {
      .num_buckets = kMaxMinibatches,
      .counts = std::vector<BucketCounts>(2 * kMaxMinibatches)};
  // Partition 0 has too many ids before and after bucket 32, partition 1 too
  // many distinct ones before and after bucket 1.
  table.counts[0].num_ids = table.counts[63].num_ids = 5;
  table.counts[64 + 0].num_unique_ids = table.counts[64 + 1].num_unique_ids = 2;
  const PartitionLimits limits = {
      .num_scs = 2, .max_ids = 9, .max_unique_ids = 3};
  EXPECT_THAT(Ranges(MinibatchSplit(SplitBits(table, limits))),
              ElementsAre(Pair(0, 1), Pair(1, 32), Pair(32, 64)));
}

TEST(MinibatchSplitTest, OneBucketIsOneMinibatch) {
  EXPECT_THAT(Ranges(MinibatchSplit()), ElementsAre(Pair(0, 1)));
}

TEST(MinibatchSplitTest, JoinedBucketsHaveTheSumsAndTheLastEnd) {
  PartitionTable table = {
      .num_buckets = kMaxMinibatches,
      .counts = std::vector<BucketCounts>(2 * kMaxMinibatches)};
  for (uint32_t i = 0; i < table.counts.size(); ++i) {
    table.counts[i] = {.end = 10 * (i + 1),
                       .num_ids = 3,
                       .num_unique_ids = 2,
                       .num_kept_ids = i < kMaxMinibatches ? 3u : 1u};
  }
  // Boundaries before the buckets 16 and 32.
  const MinibatchSplit split((uint64_t{1} << 60) | (uint64_t{1} << 62));
  const PartitionTable joined = JoinBuckets(table, split);
  ASSERT_EQ(joined.num_buckets, 3);
  ASSERT_EQ(joined.num_partitions(), 2);
  const std::vector<uint32_t> sizes = {16, 16, 32};
  for (int t = 0; t < 2; ++t) {
    for (int m = 0; m < 3; ++m) {
      const BucketCounts& counts = joined.Buckets(t)[m];
      EXPECT_EQ(counts.end, 10 * (64 * t + split.end(m)));
      EXPECT_EQ(joined.Begin(t, m), 10 * (64 * t + split.begin(m)));
      EXPECT_EQ(counts.num_ids, 3 * sizes[m]);
      EXPECT_EQ(counts.num_unique_ids, 2 * sizes[m]);
      EXPECT_EQ(counts.num_kept_ids, (t == 0 ? 3 : 1) * sizes[m]);
    }
  }
}

}  // namespace
}  // namespace jte::convert
