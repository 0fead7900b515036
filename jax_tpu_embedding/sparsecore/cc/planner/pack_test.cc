// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<std::vector<size_t>> FirstFitBytes(std::vector<int64_t> bytes,
                                               int64_t limit) {
  std::vector<Load> items;
  for (const int64_t b : bytes) items.push_back({.activation_bytes = b});
  return FirstFit(items, {.activation_bytes = limit});
}

TEST(FirstFitTest, NothingNeedsNoBin) {
  EXPECT_THAT(FirstFitBytes({}, 10), IsEmpty());
}

TEST(FirstFitTest, FillsBinsToTheLimit) {
  EXPECT_THAT(
      FirstFitBytes({256, 256, 256, 256, 256}, 512),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_THAT(FirstFitBytes({10, 20, 30}, 40),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(FirstFitTest, ReturnsToAnEarlierBinThatHasRoom) {
  // Next fit would put the last item beside 500.
  EXPECT_THAT(FirstFitBytes({600, 500, 300}, 1000),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(FirstFitTest, ItemAboveTheLimitIsAlone) {
  EXPECT_THAT(FirstFitBytes({5, 20, 5}, 10),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
  EXPECT_THAT(FirstFitBytes({5, 5}, 0),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(FirstFitTest, LoadsWhoseSumDoesNotFitInt64AreApart) {
  EXPECT_THAT(FirstFitBytes({kMax, kMax}, kMax),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(FirstFitTest, IsTheFirstBinOfManyThatHasRoom) {
  // By looking at all bins for each item.
  std::vector<Load> items;
  std::vector<std::vector<size_t>> expected;
  std::vector<Load> used;
  for (int64_t i = 0; i < 2'000; ++i) {
    const Load item = {.activation_bytes = i * i % 101, .rows = i * 7 % 53};
    const size_t bin =
        std::ranges::find_if(
            used,
            [&item](const Load& load) {
              return load.activation_bytes + item.activation_bytes <= 90 &&
                     load.rows + item.rows <= 70;
            }) -
        used.begin();
    if (bin == used.size()) {
      used.emplace_back();
      expected.emplace_back();
    }
    used[bin].activation_bytes += item.activation_bytes;
    used[bin].rows += item.rows;
    expected[bin].push_back(i);
    items.push_back(item);
  }
  EXPECT_EQ(FirstFit(items, {.activation_bytes = 90, .rows = 70}), expected);
}

TEST(FirstFitTest, RowsAreLimitedToo) {
  const std::vector<Load> items = {{.activation_bytes = 1, .rows = 6},
                                   {.activation_bytes = 1, .rows = 5},
                                   {.activation_bytes = 1, .rows = 4}};
  EXPECT_THAT(FirstFit(items, {.activation_bytes = 100, .rows = 10}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

Model ModelOfOneTable(int64_t embedding_dim, std::vector<int64_t> samples) {
  Model model;
  model.topology = {.global_device_count = 2, .num_sc_per_device = 4};
  Table table;
  table.name = "a";
  table.vocabulary_size = 33;
  table.embedding_dim = embedding_dim;
  model.tables.push_back(table);
  for (const int64_t n : samples) {
    model.features.push_back({.name = "f", .table = 0, .num_samples = n});
  }
  return model;
}

TEST(TableLoadsTest, CountsPaddedFloatsOfTheSamplesOfOneSparseCore) {
  const Load load = TableLoads(ModelOfOneTable(6, {60})).front();
  EXPECT_EQ(load.activation_bytes, 8 * 4 * (60 / 8));
  EXPECT_EQ(load.rows, 64);
}

TEST(TableLoadsTest, AddsItsFeatures) {
  EXPECT_EQ(TableLoads(ModelOfOneTable(8, {16, 15})).front().activation_bytes,
            8 * 4 * (2 + 1));
}

TEST(TableLoadsTest, SaturatesInsteadOfOverflowing) {
  const int64_t dim = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(TableLoads(ModelOfOneTable(dim, {int64_t{1} << 40}))
                .front()
                .activation_bytes,
            kMax);
}

}  // namespace
}  // namespace jte::planner
