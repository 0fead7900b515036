// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kPad = kPaddingId;
constexpr int kNumScs = 2;
constexpr SortKey kSortKey(kNumScs, 99);

uint64_t Element(uint32_t partition, uint32_t row, uint32_t payload) {
  return SortKey::Element(kSortKey.Key(partition, row), payload);
}

// The region of one SparseCore, full of numbers that must be overwritten.
struct Region {
  explicit Region(int64_t num_cells)
      : row_pointers(8, -7),
        embedding_ids(num_cells, -7),
        sample_ids(num_cells, -7),
        gains(num_cells, -7.0f) {}

  FillReport Fill(std::span<const uint64_t> elements, const GainSource& source,
                  int64_t max_ids = 100, int64_t max_unique_ids = 100) {
    return FillCsr(elements, kSortKey, source,
                   {.num_scs = kNumScs,
                    .max_ids = max_ids,
                    .max_unique_ids = max_unique_ids},
                   {row_pointers, embedding_ids, sample_ids, gains},
                   {.ids = ids_seen, .unique_ids = unique_ids_seen});
  }

  // (row, sample, gain) of the cells [begin, end).
  std::vector<std::tuple<int32_t, int32_t, float>> Cells(int begin, int end) {
    std::vector<std::tuple<int32_t, int32_t, float>> cells;
    for (int i = begin; i < end; ++i) {
      cells.emplace_back(embedding_ids[i], sample_ids[i], gains[i]);
    }
    return cells;
  }

  void ExpectPadding(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      EXPECT_EQ(embedding_ids[i], kPad) << i;
      EXPECT_EQ(sample_ids[i], kPad) << i;
      EXPECT_TRUE(std::isnan(gains[i])) << i;
    }
  }

  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
  std::vector<int32_t> ids_seen = std::vector<int32_t>(kNumScs);
  std::vector<int32_t> unique_ids_seen = std::vector<int32_t>(kNumScs);
};

using Cell = std::tuple<int32_t, int32_t, float>;

// Samples [0, 0, 3] and [5, 2] of a mean, as SparseCore 0 of two gets them.
TEST(FillCsrTest, WritesPartitionsPaddingAndRowPointers) {
  const std::vector<float> gains = {0.25f, 0.5f};
  const std::vector<uint64_t> elements = {
      Element(0, 0, 0), Element(0, 0, 0), Element(0, 1, 1),
      Element(1, 1, 0), Element(1, 2, 1),
  };
  Region region(24);
  const FillReport report = region.Fill(elements, SampleGains{gains});
  EXPECT_THAT(region.row_pointers, ElementsAre(2, 10, 16, 16, 16, 16, 16, 16));
  EXPECT_THAT(region.Cells(0, 2),
              ElementsAre(Cell{0, 0, 0.5f}, Cell{1, 1, 0.5f}));
  region.ExpectPadding(2, 8);
  EXPECT_THAT(region.Cells(8, 10),
              ElementsAre(Cell{1, 0, 0.25f}, Cell{2, 1, 0.5f}));
  region.ExpectPadding(10, 24);
  EXPECT_THAT(region.ids_seen, ElementsAre(2, 2));
  EXPECT_THAT(region.unique_ids_seen, ElementsAre(2, 2));
  EXPECT_EQ(report.required_cells, 16);
  EXPECT_EQ(report.dropped_id_count, 0);
}

TEST(FillCsrTest, AnEmptySparseCoreIsAllPadding) {
  Region region(16);
  const FillReport report = region.Fill({}, UnitGains{});
  EXPECT_THAT(region.row_pointers, Each(0));
  region.ExpectPadding(0, 16);
  EXPECT_THAT(region.ids_seen, Each(0));
  EXPECT_EQ(report.required_cells, 0);
}

TEST(FillCsrTest, MergesOneRowOfOneSampleInOrderOfOccurrence) {
  // 2^24 + 1 - 2^24 in float32: the 1 is lost, from left to right.
  const std::vector<WeightedId> ids = {
      {0, 0x1p24f}, {0, 1.0f}, {0, -0x1p24f}, {1, 1.0f}};
  const std::vector<uint64_t> elements = {Element(1, 5, 0), Element(1, 5, 1),
                                          Element(1, 5, 2), Element(1, 5, 3)};
  Region region(16);
  region.Fill(elements, IdGains{ids});
  EXPECT_THAT(region.Cells(0, 2),
              ElementsAre(Cell{5, 0, 0.0f}, Cell{5, 1, 1.0f}));
  EXPECT_THAT(region.ids_seen, ElementsAre(0, 2));
  EXPECT_THAT(region.unique_ids_seen, ElementsAre(0, 1));
}

TEST(FillCsrTest, KeepsTheSignOfAZeroGain) {
  const std::vector<WeightedId> ids = {{0, -0.0f}};
  Region region(16);
  region.Fill(std::vector<uint64_t>{Element(0, 0, 0)}, IdGains{ids});
  EXPECT_TRUE(std::signbit(region.gains[0]));
}

TEST(FillCsrTest, PadsOnlyUpToTheNextMultipleOfEight) {
  std::vector<uint64_t> elements;
  for (uint32_t i = 0; i < 8; ++i) elements.push_back(Element(0, i, i));
  elements.push_back(Element(1, 0, 0));
  Region region(16);
  region.Fill(elements, UnitGains{});
  EXPECT_THAT(region.row_pointers, ElementsAre(8, 9, 16, 16, 16, 16, 16, 16));
  EXPECT_EQ(region.Cells(7, 9),
            (std::vector<Cell>{{7, 7, 1.0f}, {0, 0, 1.0f}}));
  region.ExpectPadding(9, 16);
}

// Partition 0: rows 0, 0, 1, 2 of samples 0, 1, 0, 0; row 1 and row 2 twice.
const std::vector<uint64_t>& Repeats() {
  static const auto& elements = *new std::vector<uint64_t>{
      Element(0, 0, 0), Element(0, 0, 1), Element(0, 1, 0), Element(0, 1, 0),
      Element(0, 2, 0), Element(0, 2, 0), Element(1, 9, 3)};
  return elements;
}

TEST(FillCsrTest, DropsWhatIsBeyondTheIdLimitAndCountsEveryId) {
  Region region(16);
  const FillReport report = region.Fill(Repeats(), UnitGains{}, 3, 100);
  // The repeat of the last kept entry still merges into it.
  EXPECT_THAT(
      region.Cells(0, 3),
      ElementsAre(Cell{0, 0, 1.0f}, Cell{0, 1, 1.0f}, Cell{1, 0, 2.0f}));
  region.ExpectPadding(3, 8);
  EXPECT_EQ(region.row_pointers[0], 3);
  EXPECT_EQ(region.row_pointers[1], 9);  // the other partition is whole
  EXPECT_EQ(report.dropped_id_count, 2);
  // What was needed, not what was kept.
  EXPECT_THAT(region.ids_seen, ElementsAre(4, 1));
  EXPECT_EQ(report.ids.count, 4);
  EXPECT_EQ(report.ids.name.partition, 0);
  EXPECT_EQ(report.unique_ids.count, 3);
  EXPECT_EQ(report.required_cells, 16);
}

TEST(FillCsrTest, DropsWhatIsBeyondTheLimitOfDistinctIds) {
  Region region(16);
  const FillReport report = region.Fill(Repeats(), UnitGains{}, 100, 1);
  EXPECT_THAT(region.Cells(0, 2),
              ElementsAre(Cell{0, 0, 1.0f}, Cell{0, 1, 1.0f}));
  EXPECT_EQ(region.row_pointers[0], 2);
  EXPECT_EQ(report.dropped_id_count, 4);
  EXPECT_THAT(region.unique_ids_seen, ElementsAre(3, 1));
}

TEST(FillCsrTest, StopsAtTheEndOfTheRegionAndCountsEveryEntry) {
  std::vector<uint64_t> elements;
  for (uint32_t i = 0; i < 10; ++i) {
    elements.push_back(Element(0, i, 0));
    elements.push_back(Element(0, i, 0));
  }
  elements.push_back(Element(1, 0, 0));
  Region region(8);
  const FillReport report = region.Fill(elements, UnitGains{});
  EXPECT_THAT(region.row_pointers, Each(8));
  EXPECT_THAT(region.embedding_ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(region.gains, Each(2.0f));
  // Rows 8 and 9, each an entry of two ids, and the whole partition 1.
  EXPECT_EQ(report.dropped_id_count, 3);
  EXPECT_EQ(report.required_cells, 16 + 8);
}

TEST(FillCsrTest, ARegionThatEndsWithTheLastEntryDropsNothing) {
  std::vector<uint64_t> elements;
  for (uint32_t i = 0; i < 8; ++i) elements.push_back(Element(0, i, 0));
  Region region(8);
  EXPECT_EQ(region.Fill(elements, UnitGains{}).dropped_id_count, 0);
  EXPECT_THAT(region.row_pointers, Each(8));
}

// Rows in two samples each, so that blocks of entries end inside of rows.
TEST(FillCsrTest, PartitionsMayHaveMoreThanABlockOfEntries) {
  constexpr uint32_t kNumRows = 701;
  constexpr SortKey kWideKey(kNumScs, kNumRows);
  std::vector<uint64_t> elements;
  for (uint32_t partition : {0, 1}) {
    for (uint32_t row = 0; row < kNumRows; ++row) {
      for (uint32_t sample : {0, 1, 1}) {
        elements.push_back(
            SortKey::Element(kWideKey.Key(partition, row), sample));
      }
    }
  }
  for (const int64_t max_ids : {2 * kNumRows, 2 * kNumRows - 1}) {
    Region region(4096);
    const FillReport report =
        FillCsr(elements, kWideKey, UnitGains{},
                {.num_scs = kNumScs, .max_ids = max_ids, .max_unique_ids = 999},
                {region.row_pointers, region.embedding_ids, region.sample_ids,
                 region.gains},
                {region.ids_seen, region.unique_ids_seen});
    EXPECT_THAT(region.ids_seen, Each(2 * kNumRows));
    EXPECT_THAT(region.unique_ids_seen, Each(kNumRows));
    EXPECT_EQ(region.row_pointers[0], max_ids);
    EXPECT_EQ(region.row_pointers[1], 1408 + max_ids);
    EXPECT_EQ(region.Cells(1408 + 1200, 1408 + 1202),
              (std::vector<Cell>{{600, 0, 1.0f}, {600, 1, 2.0f}}));
    // The last entry of each partition has two ids.
    EXPECT_EQ(report.dropped_id_count, max_ids < 2 * kNumRows ? 4 : 0);
    region.ExpectPadding(1408 + max_ids, 4096);
  }
}

TEST(FillCsrTest, FindsPartitionsOfAnySize) {
  for (uint32_t size = 0; size < 40; ++size) {
    std::vector<uint64_t> elements;
    for (uint32_t i = 0; i < size; ++i) elements.push_back(Element(0, i, i));
    for (uint32_t i = 0; i < 3; ++i) elements.push_back(Element(1, i, i));
    Region region(64);
    region.Fill(elements, UnitGains{});
    EXPECT_THAT(region.ids_seen, ElementsAre(size, 3));
  }
}

}  // namespace
}  // namespace jte::convert
