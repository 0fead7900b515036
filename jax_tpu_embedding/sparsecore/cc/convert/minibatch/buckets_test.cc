// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr uint32_t kNumScs = 3;
constexpr SortKey kSortKey(kNumScs, 999'999);

uint64_t Element(uint32_t stack_row, uint32_t payload) {
  return SortKey::Element(
      kSortKey.Key(stack_row % kNumScs, stack_row / kNumScs), payload);
}

// With memory of exactly one row per element, which a sanitizer watches.
struct Listed {
  explicit Listed(const std::vector<uint64_t>& elements)
      : stack_rows(elements.size()),
        ends(elements.size()),
        rows(ListRows(elements, kSortKey, kNumScs,
                      {.stack_rows = stack_rows, .ends = ends})) {}

  std::vector<uint32_t> stack_rows;
  std::vector<uint32_t> ends;
  RowList rows;
};

TEST(RowListTest, GivesStackRowsAndEnds) {
  const Listed listed(
      {Element(3, 1), Element(3, 1), Element(6, 0), Element(4, 2)});
  EXPECT_THAT(listed.rows.stack_rows, ElementsAre(3, 6, 4));
  EXPECT_THAT(listed.rows.ends, ElementsAre(2, 3, 4));
}

TEST(RowListTest, ListsWhatALoopFinds) {
  for (const uint32_t num_stack_rows : {1, 20, 500, 3'000'000}) {
    for (const size_t size : {0, 1, 2, 8, 9, 10, 17, 25, 1000}) {
      std::mt19937 random(size + num_stack_rows);
      std::vector<uint64_t> elements(size);
      for (uint64_t& element : elements) {
        element = Element(random() % num_stack_rows, random() % 4);
      }
      std::ranges::sort(elements);
      std::vector<uint32_t> stack_rows, ends;
      for (size_t i = 0; i < size; ++i) {
        const uint32_t key = SortKey::KeyOf(elements[i]);
        if (i == 0 || SortKey::KeyOf(elements[i - 1]) != key) {
          stack_rows.push_back(kSortKey.RowOf(key) * kNumScs +
                               kSortKey.PartitionOfKey(key));
          ends.push_back(0);
        }
        ends.back() = i + 1;
      }
      const Listed listed(elements);
      EXPECT_THAT(listed.rows.stack_rows, ElementsAreArray(stack_rows));
      EXPECT_THAT(listed.rows.ends, ElementsAreArray(ends));
    }
  }
}

constexpr PartitionLimits kNoLimits = {
    .num_scs = kNumScs, .max_ids = 1 << 30, .max_unique_ids = 1 << 30};

// Elements in memory of their own, with as much to spare.
struct Sorted {
  Sorted(std::vector<uint64_t> all, GainSource gains = UnitGains{})
      : elements(std::move(all)), spare(elements.size()) {
    std::ranges::sort(elements);
    ids = {.elements = elements, .spare = spare, .gains = gains};
  }

  std::vector<uint64_t> elements;
  std::vector<uint64_t> spare;
  SortedIds ids;
};

// With the counts that it needs.
PartitionTable CountAndSort(SortedIds& ids, const PartitionLimits& limits,
                            RowScratch& scratch) {
  const PartitionTable partitions = CountPartitions(ids, kSortKey, kNumScs);
  return SortIntoBuckets(ids, partitions, kSortKey, limits, scratch);
}

// (partition, bucket, element): what SortIntoBuckets sorts by.
auto BucketOrder(uint64_t element) {
  const uint32_t partition = kSortKey.PartitionOf(element);
  const uint32_t row = kSortKey.RowOf(SortKey::KeyOf(element));
  return std::tuple(partition, BucketOf(row * kNumScs + partition), element);
}

TEST(BucketCountsTest, CountsEntriesAndRowsOfPartitions) {
  // Stack row 0 twice in sample 5 and once in 6, stack row 3; stack row 1.
  const Sorted sorted({Element(0, 5), Element(0, 5), Element(0, 6),
                       Element(3, 5), Element(1, 5)});
  const PartitionTable table = CountPartitions(sorted.ids, kSortKey, kNumScs);
  ASSERT_EQ(table.num_partitions(), kNumScs);
  const auto& counts = table.counts;
  EXPECT_EQ(counts[0].end, 4);
  EXPECT_EQ(counts[0].num_ids, 3);
  EXPECT_EQ(counts[0].num_unique_ids, 2);
  EXPECT_EQ(counts[0].num_kept_ids, 3);
  EXPECT_EQ(counts[1].end, 5);
  EXPECT_EQ(counts[1].num_ids, 1);
  EXPECT_EQ(counts[2].end, 5);
  EXPECT_EQ(counts[2].num_ids, 0);
}

TEST(BucketCountsTest, TakesSamplesFromTheWeightedIds) {
  // The first two elements are ids of one sample.
  const std::vector<WeightedId> weighted = {{0, 1.0f}, {0, 1.0f}, {1, 1.0f}};
  Sorted sorted({Element(0, 0), Element(0, 1), Element(0, 2)},
                IdGains{weighted});
  EXPECT_EQ(CountPartitions(sorted.ids, kSortKey, kNumScs).counts[0].num_ids,
            2);
  RowScratch scratch;
  const PartitionTable table = CountAndSort(sorted.ids, kNoLimits, scratch);
  EXPECT_EQ(table.Buckets(0)[BucketOf(0)].num_ids, 2);
}

TEST(BucketCountsTest, SortsElementsByPartitionAndBucket) {
  // Stack rows 0, 3 and 6 are in buckets 7, 35 and 9.
  Sorted sorted({Element(0, 1), Element(0, 2), Element(3, 1), Element(6, 1),
                 Element(1, 1)});
  RowScratch scratch;
  const PartitionTable table = CountAndSort(sorted.ids, kNoLimits, scratch);
  EXPECT_THAT(sorted.ids.elements,
              ElementsAre(Element(0, 1), Element(0, 2), Element(6, 1),
                          Element(3, 1), Element(1, 1)));
  EXPECT_EQ(table.Buckets(0)[7].end, 2);
  EXPECT_EQ(table.Buckets(0)[8].end, 2);
  EXPECT_EQ(table.Buckets(0)[9].end, 3);
  EXPECT_EQ(table.Buckets(0)[35].end, 4);
  EXPECT_EQ(table.Buckets(1)[BucketOf(1)].num_unique_ids, 1);
}

TEST(BucketCountsTest, KeepsThePrefixOfABucketThatIsWithinItsLimits) {
  // Stack row 0 in three samples, the first twice.
  const std::vector<uint64_t> elements = {Element(0, 0), Element(0, 0),
                                          Element(0, 1), Element(0, 2)};
  for (const auto& [max_ids, max_unique_ids, kept] :
       std::vector<std::tuple<int64_t, int64_t, uint32_t>>{
           {3, 1, 3}, {2, 1, 2}, {1, 1, 1}}) {
    Sorted sorted(elements);
    RowScratch scratch;
    const PartitionTable table =
        CountAndSort(sorted.ids,
                     {.num_scs = kNumScs,
                      .max_ids = max_ids,
                      .max_unique_ids = max_unique_ids},
                     scratch);
    EXPECT_EQ(table.Buckets(0)[7].num_ids, 3);
    EXPECT_EQ(table.Buckets(0)[7].num_kept_ids, kept) << max_ids;
  }
}

TEST(BucketCountsTest, CountsEqualThoseOfAComparisonSort) {
  std::mt19937 random(1);
  RowScratch scratch;  // reused, as between tasks
  for (int size : {0, 1, 5, 100, 3000}) {
    std::vector<uint64_t> elements(size);
    for (uint64_t& element : elements) {
      element = Element(std::uniform_int_distribution(0, 2999)(random) / 3,
                        std::uniform_int_distribution(0, 9)(random));
    }
    Sorted sorted(elements);
    const PartitionTable table = CountAndSort(sorted.ids, kNoLimits, scratch);

    std::ranges::sort(elements, {}, BucketOrder);
    EXPECT_TRUE(std::ranges::equal(sorted.ids.elements, elements));
    std::vector<BucketCounts> expected(kNumScs * kMaxMinibatches);
    for (size_t i = 0; i < elements.size(); ++i) {
      const auto [partition, bucket, element] = BucketOrder(elements[i]);
      BucketCounts& counts = expected[partition * kMaxMinibatches + bucket];
      const bool first = i == 0;
      counts.num_ids += first || element != elements[i - 1];
      counts.num_unique_ids +=
          first || SortKey::KeyOf(element) != SortKey::KeyOf(elements[i - 1]);
      for (auto later = &counts; later <= &expected.back(); ++later) {
        later->end = i + 1;
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(table.counts[i].num_ids, expected[i].num_ids);
      EXPECT_EQ(table.counts[i].num_kept_ids, expected[i].num_ids);
      EXPECT_EQ(table.counts[i].num_unique_ids, expected[i].num_unique_ids);
      EXPECT_EQ(table.counts[i].end, expected[i].end);
    }
  }
}

}  // namespace
}  // namespace jte::convert
