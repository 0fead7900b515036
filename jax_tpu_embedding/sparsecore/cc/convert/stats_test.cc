// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

namespace jte {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(StackStatsTest, HasOneNumberPerPartitionAndSparseCore) {
  const StackStats stats({.local_device_count = 2,
                          .global_device_count = 4,
                          .num_sc_per_device = 3});
  EXPECT_THAT(stats.max_ids_per_partition, SizeIs(2 * 12));
  EXPECT_THAT(stats.max_unique_ids_per_partition, SizeIs(2 * 12));
  EXPECT_THAT(stats.required_buffer_size_per_sc, SizeIs(2 * 3));
  EXPECT_THAT(stats.max_ids_per_partition, Each(0));
}

TEST(PartitionMaximaTest, KeepsTheLargest) {
  std::vector<int32_t> ids(2), unique_ids(2);
  PartitionMaxima maxima(ids, unique_ids);
  maxima.Record(1, 5, 2);
  maxima.Record(1, 4, 3);
  EXPECT_THAT(ids, ElementsAre(0, 5));
  EXPECT_THAT(unique_ids, ElementsAre(0, 3));
}

TEST(PartitionMaximaTest, LosesNothingWhenThreadsRecordAtOnce) {
  // Threads that walk along the same partitions meet at some of them.
  constexpr int kNumPartitions = 1000000;
  std::vector<int32_t> ids(kNumPartitions), unique_ids(kNumPartitions);
  PartitionMaxima maxima(ids, unique_ids);
  ThreadExecutor(4).ParallelFor(4, [&maxima](int64_t i) {
    const auto count = static_cast<int32_t>(i + 1);
    for (int p = 0; p < kNumPartitions; ++p) maxima.Record(p, count, count);
  });
  EXPECT_EQ(std::ranges::count(ids, 4), kNumPartitions);
  EXPECT_EQ(std::ranges::count(unique_ids, 4), kNumPartitions);
}

}  // namespace
}  // namespace jte
