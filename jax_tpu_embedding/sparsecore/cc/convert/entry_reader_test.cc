// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/entry_reader.h"

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// (key, sample, gain, number of elements)
using Entry = std::tuple<uint32_t, int32_t, float, int64_t>;

template <typename Gains>
std::vector<Entry> ReadAll(const std::vector<uint64_t>& elements,
                           const Gains& gains) {
  std::vector<Entry> entries;
  EntryReader reader(elements, gains);
  EntryBlock block;
  uint32_t last_key = EntryBlock::kNoKey;
  int64_t last_end = 0;
  while (reader.Next(block)) {
    EXPECT_EQ(block.keys()[-1], last_key);
    EXPECT_EQ(block.first_element + block.begins[0], last_end);
    for (int64_t i = 0; i < block.size; ++i) {
      entries.emplace_back(block.keys()[i], block.samples[i], block.gains[i],
                           block.begins[i + 1] - block.begins[i]);
    }
    for (int64_t i = 0; i < EntryBlock::kSlack; ++i) {
      EXPECT_EQ(block.keys()[block.size + i], EntryBlock::kNoKey);
    }
    last_key = block.keys()[block.size - 1];
    last_end = block.first_element + block.begins[block.size];
  }
  EXPECT_EQ(last_end, std::ssize(elements));
  EXPECT_EQ(block.size, 0);
  EXPECT_EQ(block.keys()[0], EntryBlock::kNoKey);
  EXPECT_EQ(block.first_element + block.begins[0], last_end);
  return entries;
}

TEST(EntryReaderTest, LooksUpSamplesAndGainsOfPayloads) {
  const std::vector<uint64_t> elements = {
      SortKey::Element(5, 0), SortKey::Element(5, 1), SortKey::Element(7, 2)};
  const std::vector<float> gains = {0.5f, 0.25f, 2.0f};
  const std::vector<WeightedId> ids = {{3, 0.5f}, {3, 0.25f}, {9, 2.0f}};
  EXPECT_THAT(ReadAll(elements, UnitGains{}),
              ElementsAre(Entry(5, 0, 1.0f, 1), Entry(5, 1, 1.0f, 1),
                          Entry(7, 2, 1.0f, 1)));
  EXPECT_THAT(ReadAll(elements, SampleGains{gains}),
              ElementsAre(Entry(5, 0, 0.5f, 1), Entry(5, 1, 0.25f, 1),
                          Entry(7, 2, 2.0f, 1)));
  EXPECT_THAT(ReadAll(elements, MatrixGains{gains, Divisor(2)}),
              ElementsAre(Entry(5, 0, 0.75f, 2), Entry(7, 1, 2.0f, 1)));
  // Samples 3 and 9, positions of two bits.
  const std::vector<uint64_t> packed = {
      SortKey::Element(5, PackedGains::Payload(3, 0, 2)),
      SortKey::Element(5, PackedGains::Payload(3, 1, 2)),
      SortKey::Element(7, PackedGains::Payload(9, 2, 2))};
  EXPECT_THAT(ReadAll(packed, PackedGains{gains, 2}),
              ElementsAre(Entry(5, 3, 0.75f, 2), Entry(7, 9, 2.0f, 1)));
  EXPECT_THAT(ReadAll(elements, IdGains{ids}),
              ElementsAre(Entry(5, 3, 0.75f, 2), Entry(7, 9, 2.0f, 1)));
}

TEST(EntryReaderTest, NoElementsHaveNoEntries) {
  EXPECT_THAT(ReadAll({}, UnitGains{}), IsEmpty());
}

// At any distance from the end of a block, and longer than blocks.
TEST(EntryReaderTest, AnEntryOfManyElementsIsOne) {
  constexpr int64_t kBlock = EntryBlock::kMaxSize;
  for (int64_t first : {0, 1, 5}) {
    for (int64_t size : {kBlock - 6, kBlock - 5, kBlock - 1, kBlock, kBlock + 1,
                         2 * kBlock + 1, 4 * kBlock}) {
      std::vector<uint64_t> elements;
      std::vector<Entry> expected;
      for (int64_t i = 0; i < first; ++i) {
        elements.push_back(SortKey::Element(1, i));
        expected.emplace_back(1, i, 1.0f, 1);
      }
      elements.insert(elements.end(), size, SortKey::Element(2, 3));
      expected.emplace_back(2, 3, static_cast<float>(size), size);
      EXPECT_EQ(ReadAll(elements, UnitGains{}), expected);
      elements.push_back(SortKey::Element(2, 4));
      expected.emplace_back(2, 4, 1.0f, 1);
      EXPECT_EQ(ReadAll(elements, UnitGains{}), expected);
    }
  }
}

}  // namespace
}  // namespace jte
