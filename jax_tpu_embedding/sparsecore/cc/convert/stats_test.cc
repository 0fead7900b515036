// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

namespace jte::convert {
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

TEST(SharedStatsTest, KeepsTheLargestCountsOfADevice) {
  SharedStats shared({.local_device_count = 2,
                      .global_device_count = 2,
                      .num_sc_per_device = 2});
  std::vector<int32_t> ids = {5, 1, 0, 0}, unique_ids = {2, 1, 0, 0};
  shared.Record(/*local_sc=*/2, {ids, unique_ids}, 16);
  ids = {4, 3, 0, 0};
  unique_ids = {3, 0, 0, 0};
  shared.Record(/*local_sc=*/3, {ids, unique_ids}, 24);
  shared.RecordMinibatches(/*local_sc=*/3, 40);
  shared.RecordDropped(7);
  const StackStats stats = shared.Take();
  EXPECT_THAT(stats.max_ids_per_partition, ElementsAre(0, 0, 0, 0, 5, 3, 0, 0));
  EXPECT_THAT(stats.max_unique_ids_per_partition,
              ElementsAre(0, 0, 0, 0, 3, 1, 0, 0));
  EXPECT_THAT(stats.required_buffer_size_per_sc, ElementsAre(0, 0, 16, 24));
  EXPECT_THAT(stats.minibatch_alignment_per_sc, ElementsAre(0, 0, 0, 16));
  EXPECT_EQ(stats.dropped_id_count, 7);
}

TEST(SharedStatsTest, LosesNothingWhenThreadsRecordAtOnce) {
  constexpr int kNumScs = 64;
  SharedStats shared({.local_device_count = 1,
                      .global_device_count = 1,
                      .num_sc_per_device = kNumScs});
  ThreadExecutor(4).ParallelFor(kNumScs, [&shared](int64_t sc) {
    // The largest of partition t is that of SparseCore t.
    std::vector<int32_t> ids(kNumScs, 1);
    ids[sc] = 100;
    shared.Record(sc, {ids, ids}, 8);
    shared.RecordDropped(1);
  });
  const StackStats stats = shared.Take();
  EXPECT_THAT(stats.max_ids_per_partition, Each(100));
  EXPECT_THAT(stats.required_buffer_size_per_sc, Each(8));
  EXPECT_EQ(stats.dropped_id_count, kNumScs);
}

}  // namespace
}  // namespace jte::convert
