// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"

namespace jte::kernels {

namespace {

std::tuple<int32_t, int32_t, float> Fields(const Entry& entry) {
  return {entry.row, entry.sample, entry.gain};
}

TEST(SortEntriesTest, SortsByRowAndKeepsTheOrderOfEqualRows) {
  // Digits of 1, 2 and 3 passes; 12000 entries, enough for several chunks.
  for (int64_t rows_per_shard : {1, 7, 1000, 40000, 2000000}) {
    const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 3,
                                         .rows_per_shard = rows_per_shard,
                                         .batch_size_per_sc = 400,
                                         .enable_minibatching = false,
                                         .num_minibatches = 1},
                                        /*ids_per_sample=*/10, /*seed=*/1);
    std::vector<Entry> expected = coo.entries;
    std::ranges::stable_sort(expected, {}, &Entry::row);
    const CooBuffers buffers = coo.buffers();
    const auto partitions = ReadPartitions(buffers, coo.geometry).value();
    for (int num_threads : {1, 2, 5}) {
      ThreadExecutor executor(num_threads);
      const int64_t size = std::ssize(expected);
      const auto sorted =
          SortByRow({buffers, partitions}, size, coo.num_rows(), executor);
      for (int64_t i = 0; i < size; ++i) {
        ASSERT_EQ(Fields(sorted[i]), Fields(expected[i])) << i;
      }
    }
  }
}

TEST(SortEntriesTest, LaterSamplesAreOfTheSamePartition) {
  const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 2,
                                       .rows_per_shard = 40,
                                       .batch_size_per_sc = 30,
                                       .enable_minibatching = false,
                                       .num_minibatches = 1},
                                      /*ids_per_sample=*/3, /*seed=*/5);
  const CooBuffers buffers = coo.buffers();
  const auto partitions = ReadPartitions(buffers, coo.geometry).value();
  const auto expect_later = [&coo](const auto& source, int64_t first,
                                   int64_t end) {
    int64_t i = first;
    source.ForEachAndLater(
        first, end, /*distance=*/7,
        [&coo, &i, end](const Entry& entry, int32_t later_sample) {
          EXPECT_EQ(Fields(entry), Fields(coo.entries[i])) << i;
          const int64_t later = std::min(i + 7, end - 1);
          EXPECT_EQ(later_sample, coo.entries[later].sample) << i;
          ++i;
        });
    EXPECT_EQ(i, end);
  };
  int64_t first = 0;
  for (const Partition& partition : partitions) {
    const int64_t end = first + partition.end - partition.begin;
    expect_later(BufferEntries{buffers, partitions}, first, end);
    expect_later(SpanEntries{coo.entries}, first, end);
    first = end;
  }
  EXPECT_EQ(first, std::ssize(coo.entries));
}

TEST(SortEntriesTest, DistributesNothing) {
  const CooBuffers buffers{};
  ThreadExecutor executor(2);
  const std::vector<int64_t> starts = DistributeEntries(
      BufferEntries{buffers, {}}, /*num_entries=*/0, /*num_buckets=*/3,
      [](const Entry&) { return 0; }, {}, executor);
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 0, 0, 0}));
}

}  // namespace

}  // namespace jte::kernels
