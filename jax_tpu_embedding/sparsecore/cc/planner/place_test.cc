// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::planner {
namespace {

using ::testing::ElementsAre;

std::vector<ShardPosition> Place(std::vector<int64_t> sizes, int64_t num_shards,
                                 int64_t rotation) {
  return PlaceTables(sizes, num_shards, rotation);
}

TEST(PlaceTablesTest, EachTableStartsWhereTheOneBeforeItEnds) {
  EXPECT_THAT(Place({64, 128, 64}, 8, 3),
              ElementsAre(ShardPosition{0, 0}, ShardPosition{8, 3},
                          ShardPosition{24, 6}));
}

TEST(PlaceTablesTest, RotationsWrap) {
  EXPECT_THAT(Place({64, 64, 64}, 8, -1),
              ElementsAre(ShardPosition{0, 0}, ShardPosition{8, 7},
                          ShardPosition{16, 6}));
  EXPECT_THAT(Place({24, 24}, 3, 1'000'000'000'000'000'001),
              ElementsAre(ShardPosition{0, 0},
                          ShardPosition{8, 1'000'000'000'000'000'001 % 3}));
}

TEST(PlaceTablesTest, TablesNeverOverlapAndFillTheShards) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t num_shards = 1 + random() % 12;  // not only powers of two
    std::vector<int64_t> sizes(1 + random() % 20);
    for (int64_t& size : sizes) size = num_shards * 8 * (1 + random() % 5);
    const auto positions = PlaceTables(sizes, num_shards, random() % 100);
    int64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(positions[i].row_offset_in_shard, end);
      ASSERT_GE(positions[i].shard_rotation, 0);
      ASSERT_LT(positions[i].shard_rotation, num_shards);
      end += sizes[i] / num_shards;
    }
  }
}

TEST(PaddingTest, RowsToEightPerShardAndColumnsToEight) {
  Table table;
  table.vocabulary_size = 33;
  table.embedding_dim = 6;
  const Topology topology{.global_device_count = 2, .num_sc_per_device = 4};
  EXPECT_EQ(PaddedVocabularySize(table, topology), 64);
  EXPECT_EQ(PaddedEmbeddingDim(table), 8);

  table.vocabulary_size = 49;
  const Topology odd{.global_device_count = 2, .num_sc_per_device = 3};
  EXPECT_EQ(PaddedVocabularySize(table, odd), 96);
}

}  // namespace
}  // namespace jte::planner
