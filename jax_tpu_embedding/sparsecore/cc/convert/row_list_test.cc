// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/row_list.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr uint32_t kNumScs = 3;
constexpr SortKey kSortKey(kNumScs, 999'999);

uint64_t Element(uint32_t column, uint32_t payload) {
  return SortKey::Element(kSortKey.Key(column % kNumScs, column / kNumScs),
                          payload);
}

// With memory of exactly one row per element, which a sanitizer watches.
struct Listed {
  explicit Listed(const std::vector<uint64_t>& elements)
      : columns(elements.size()),
        ends(elements.size()),
        rows(ListRows(elements, kSortKey, kNumScs,
                      {.columns = columns, .ends = ends})) {}

  std::vector<uint32_t> columns;
  std::vector<uint32_t> ends;
  RowList rows;
};

TEST(RowListTest, GivesColumnsAndEnds) {
  const Listed listed(
      {Element(3, 1), Element(3, 1), Element(6, 0), Element(4, 2)});
  EXPECT_THAT(listed.rows.columns, ElementsAre(3, 6, 4));
  EXPECT_THAT(listed.rows.ends, ElementsAre(2, 3, 4));
}

TEST(RowListTest, ListsWhatALoopFinds) {
  for (const uint32_t num_columns : {1, 20, 500, 3'000'000}) {
    for (const size_t size : {0, 1, 2, 8, 9, 10, 17, 25, 1000}) {
      std::mt19937 random(size + num_columns);
      std::vector<uint64_t> elements(size);
      for (uint64_t& element : elements) {
        element = Element(random() % num_columns, random() % 4);
      }
      std::ranges::sort(elements);
      std::vector<uint32_t> columns, ends;
      for (size_t i = 0; i < size; ++i) {
        const uint32_t key = SortKey::KeyOf(elements[i]);
        if (i == 0 || SortKey::KeyOf(elements[i - 1]) != key) {
          columns.push_back(kSortKey.RowOf(key) * kNumScs +
                            kSortKey.PartitionOfKey(key));
          ends.push_back(0);
        }
        ends.back() = i + 1;
      }
      const Listed listed(elements);
      EXPECT_THAT(listed.rows.columns, ElementsAreArray(columns));
      EXPECT_THAT(listed.rows.ends, ElementsAreArray(ends));
    }
  }
}

}  // namespace
}  // namespace jte
