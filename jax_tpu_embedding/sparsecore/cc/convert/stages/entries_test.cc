// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/entries.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Arrays that were written, `size` entries of them.
struct Entries {
  std::vector<uint32_t> keys;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  std::vector<uint32_t> begins;

  friend bool operator==(const Entries&, const Entries&) = default;
};

template <typename Compact>
Entries CompactWith(Compact compact, std::span<const uint64_t> elements,
                    std::span<const float> id_gains) {
  const size_t capacity = elements.size() + kCompactSlack;
  Entries entries = {.keys = std::vector<uint32_t>(capacity),
                     .samples = std::vector<int32_t>(capacity),
                     .gains = std::vector<float>(capacity),
                     .begins = std::vector<uint32_t>(capacity)};
  const int64_t size = compact(elements, id_gains,
                               {.keys = entries.keys.data(),
                                .samples = entries.samples.data(),
                                .gains = entries.gains.data(),
                                .begins = entries.begins.data()});
  entries.keys.resize(size);
  entries.samples.resize(size);
  entries.gains.resize(size);
  entries.begins.resize(size + 1);
  return entries;
}

Entries Naive(std::span<const uint64_t> elements,
              std::span<const float> id_gains) {
  Entries entries;
  for (size_t i = 0; i < elements.size(); ++i) {
    const float gain = id_gains.empty() ? 1.0f : id_gains[i];
    if (i > 0 && elements[i] == elements[i - 1]) {
      entries.gains.back() += gain;
      continue;
    }
    entries.keys.push_back(SortKey::KeyOf(elements[i]));
    entries.samples.push_back(
        static_cast<int32_t>(SortKey::PayloadOf(elements[i])));
    entries.gains.push_back(gain);
    entries.begins.push_back(static_cast<uint32_t>(i));
  }
  entries.begins.push_back(static_cast<uint32_t>(elements.size()));
  return entries;
}

// The version for any processor, and the one that this processor gets.
class CompactEntriesTest
    : public testing::TestWithParam<decltype(&CompactEntries)> {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (GetParam() == &CompactEntries && !__builtin_cpu_supports("avx512f")) {
      GTEST_SKIP() << "Without AVX-512 it is the portable one.";
    }
#endif
  }
};

INSTANTIATE_TEST_SUITE_P(All, CompactEntriesTest,
                         testing::Values(&CompactEntriesPortably,
                                         &CompactEntries),
                         [](const auto& info) {
                           return info.index == 0 ? "Portable" : "Fast";
                         });

TEST_P(CompactEntriesTest, MergesARowOfASampleInOrderOfOccurrence) {
  const std::vector<uint64_t> elements = {
      SortKey::Element(5, 0), SortKey::Element(5, 0), SortKey::Element(5, 0),
      SortKey::Element(5, 1), SortKey::Element(6, 1)};
  // 2^24 + 1 - 2^24 in float32: the 1 is lost, from left to right.
  const std::vector<float> id_gains = {0x1p24f, 1.0f, -0x1p24f, 2.0f, -0.0f};
  const auto compact = GetParam();
  const Entries entries = CompactWith(compact, elements, id_gains);
  EXPECT_THAT(entries.keys, ElementsAre(5, 5, 6));
  EXPECT_THAT(entries.samples, ElementsAre(0, 1, 1));
  EXPECT_THAT(entries.gains, ElementsAre(0.0f, 2.0f, -0.0f));
  EXPECT_TRUE(std::signbit(entries.gains[2]));
  EXPECT_THAT(entries.begins, ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(CompactWith(compact, elements, {}).gains,
              ElementsAre(3.0f, 1.0f, 1.0f));
}

// Few to many merges, in runs that cross blocks and vectors.
TEST_P(CompactEntriesTest, AgreesWithALoop) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> gain(-1.0f, 1.0f);
  for (const double repeats : {0.0, 0.05, 0.5, 0.95, 1.0}) {
    std::bernoulli_distribution repeat(repeats);
    for (int size : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 511, 512}) {
      std::vector<uint64_t> elements = {random()};
      std::vector<float> id_gains = {gain(random)};
      while (std::ssize(elements) < size) {
        uint64_t element = elements.back();
        if (!repeat(random)) {
          // Another sample, or row.
          element += random() % 2 == 0 ? 1 : uint64_t{1} << 32;
        }
        elements.push_back(element);
        id_gains.push_back(gain(random));
      }
      const auto compact = GetParam();
      EXPECT_EQ(CompactWith(compact, elements, id_gains),
                Naive(elements, id_gains));
      EXPECT_EQ(CompactWith(compact, elements, {}), Naive(elements, {}));
    }
  }
}

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

constexpr SortKey kSortKey(2, 999);

// `size` entries of partition 0 and 3 of partition 1: rows 0, 0, 1, 1, 2, ...
// in samples 0, 1, 0, 1, ... of each.
EntryBlock PairsOfRows(int size) {
  std::vector<uint64_t> elements;
  for (int i = 0; i < size + 3; ++i) {
    const uint32_t partition = i >= size;
    const uint32_t n = partition ? i - size : i;
    elements.push_back(SortKey::Element(kSortKey.Key(partition, n / 2), n % 2));
  }
  EntryBlock block;
  EntryReader(std::span<const uint64_t>(elements), UnitGains{}).Next(block);
  return block;
}

struct Cells {
  std::vector<int32_t> rows = std::vector<int32_t>(80, -7);
  std::vector<int32_t> samples = std::vector<int32_t>(80, -7);
  std::vector<float> gains = std::vector<float>(80, -7.0f);

  // The first n cells, which are all that may be written.
  CsrBuffers First(int64_t n) {
    return CsrBuffers{{}, rows, samples, gains}.FirstCells(n);
  }
};

// The version for any processor, and the one that this processor gets.
class CopyEntriesTest : public testing::TestWithParam<decltype(&CopyEntries)> {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (GetParam() == &CopyEntries && !__builtin_cpu_supports("avx512f")) {
      GTEST_SKIP() << "Without AVX-512 it is the portable one.";
    }
#endif
  }
};

INSTANTIATE_TEST_SUITE_P(All, CopyEntriesTest,
                         testing::Values(&CopyEntriesPortably, &CopyEntries),
                         [](const auto& info) {
                           return info.index == 0 ? "Portable" : "Fast";
                         });

TEST_P(CopyEntriesTest, CopiesTheEntriesOfThePartition) {
  const auto copy = GetParam();
  for (int size : {0, 1, 2, 15, 16, 17, 31, 32, 33, 50}) {
    const EntryBlock block = PairsOfRows(size);
    Cells cells;
    const CopiedEntries copied =
        copy(block, 0, kSortKey, 0, cells.First(80), 4);
    EXPECT_EQ(copied.size, size);
    EXPECT_EQ(copied.num_rows, (size + 1) / 2);
    for (int i = 0; i < size; ++i) {
      EXPECT_EQ(cells.rows[4 + i], i / 2);
      EXPECT_EQ(cells.samples[4 + i], i % 2);
      EXPECT_EQ(cells.gains[4 + i], 1.0f);
    }
    EXPECT_EQ(cells.rows[3], -7);
    const CopiedEntries next =
        copy(block, size, kSortKey, 1, cells.First(80), 0);
    EXPECT_EQ(next.size, 3);
    EXPECT_EQ(next.num_rows, 2);
    EXPECT_EQ(cells.rows[2], 1);
  }
}

TEST_P(CopyEntriesTest, PadsToTheNextMultipleOfEight) {
  const auto copy = GetParam();
  for (int64_t begin = 0; begin < 9; ++begin) {
    for (int64_t size = 0; size < 40; ++size) {
      Cells cells;
      CsrBuffers buffers = cells.First(56);
      buffers.padding_gain = 3.0f;
      copy(PairsOfRows(size), 0, kSortKey, 0, buffers, begin);
      for (int64_t i = begin + size; i % 8 != 0; ++i) {
        EXPECT_EQ(cells.rows[i], kPaddingId);
        EXPECT_EQ(cells.samples[i], kPaddingId);
        EXPECT_EQ(cells.gains[i], 3.0f);
      }
      EXPECT_EQ(cells.rows[56], -7);
    }
  }
}

// The last row of a block may go on in the next one.
TEST_P(CopyEntriesTest, ARowBeginsOnceOnly) {
  const auto copy = GetParam();
  Cells cells;
  EXPECT_EQ(copy(PairsOfRows(20), 1, kSortKey, 0, cells.First(80), 0).num_rows,
            9);
}

TEST_P(CopyEntriesTest, CountsWhatHasNoCell) {
  const auto copy = GetParam();
  const EntryBlock block = PairsOfRows(50);
  for (int64_t num_cells : {0, 1, 8, 15, 16, 17, 49}) {
    for (int64_t begin : {0, 8, 60}) {
      Cells cells;
      EXPECT_EQ(copy(block, 0, kSortKey, 0, cells.First(num_cells), begin).size,
                50);
      for (int64_t i = begin; i < num_cells; ++i) {
        EXPECT_EQ(cells.rows[i], (i - begin) / 2);
        EXPECT_EQ(cells.gains[i], 1.0f);
      }
      EXPECT_THAT(std::span(cells.rows).subspan(num_cells), Each(-7));
      EXPECT_THAT(std::span(cells.samples).subspan(num_cells), Each(-7));
      EXPECT_THAT(std::span(cells.gains).subspan(num_cells), Each(-7.0f));
    }
  }
}

// Ids of `num_rows` rows, in order, with samples as payloads, or with ordinals
// as payloads and the samples beside them.
struct Ids {
  Ids(uint32_t size, uint32_t num_rows) : weighted(size) {
    std::mt19937 random(size + num_rows);
    std::vector<uint32_t> rows(size);
    for (uint32_t& row : rows) row = random() % num_rows;
    std::ranges::sort(rows);
    for (uint32_t i = 0; i < size; ++i) {
      const bool same_row = i > 0 && rows[i] == rows[i - 1];
      const int32_t sample =
          same_row ? weighted[i - 1].sample + static_cast<int32_t>(random() % 2)
                   : static_cast<int32_t>(random() % 5);
      weighted[i] = {.sample = sample, .gain = 1.0f};
      with_samples.push_back(SortKey::Element(rows[i], sample));
      with_ordinals.push_back(SortKey::Element(rows[i], i));
      distinct_rows.insert(rows[i]);
      entries.emplace(rows[i], sample);
    }
  }

  std::vector<WeightedId> weighted;
  std::vector<uint64_t> with_samples;
  std::vector<uint64_t> with_ordinals;
  std::set<uint32_t> distinct_rows;
  std::set<std::pair<uint32_t, int32_t>> entries;
};

TEST(CountEntriesTest, CountsWhatASetHolds) {
  for (const uint32_t num_rows : {1, 3, 50, 1'000'000}) {
    for (const uint32_t size : {0, 1, 2, 8, 16, 17, 18, 33, 34, 49, 1000}) {
      const Ids ids(size, num_rows);
      const DistinctCounts of_samples =
          CountDistinct(ids.with_samples, UnitGains());
      const DistinctCounts of_ordinals =
          CountDistinct(ids.with_ordinals, IdGains{ids.weighted});
      EXPECT_EQ(of_samples.ids, ids.entries.size()) << num_rows << " " << size;
      EXPECT_EQ(of_samples.unique_ids, ids.distinct_rows.size());
      EXPECT_EQ(of_ordinals.ids, ids.entries.size()) << num_rows << " " << size;
      EXPECT_EQ(of_ordinals.unique_ids, ids.distinct_rows.size());
    }
  }
}

TEST(CountEntriesTest, RepeatsAreThoseOfTheFirstBlockThatHasAny) {
  constexpr size_t kBlock = FirstRepeats::kBlockSize;
  std::vector<uint64_t> elements;
  for (uint32_t i = 0; i <= 2 * kBlock + 3; ++i) {
    elements.push_back(SortKey::Element(i, 0));
  }
  EXPECT_EQ(FindRepeats(elements).num_rows, 2 * kBlock);
  EXPECT_EQ(FindRepeats(elements).repeats, 0);
  elements.back() = elements[2 * kBlock + 2];  // in no whole block
  for (size_t i = 1; i <= 2 * kBlock; ++i) {
    std::vector<uint64_t> with_repeat = elements;
    with_repeat[i] = with_repeat[i - 1] + 1;  // the row in the next sample
    const FirstRepeats found = FindRepeats(with_repeat);
    EXPECT_EQ(found.num_rows, (i - 1) / kBlock * kBlock) << i;
    EXPECT_EQ(found.repeats, uint32_t{1} << (i - 1) % kBlock) << i;
  }
}

}  // namespace
}  // namespace jte::convert
