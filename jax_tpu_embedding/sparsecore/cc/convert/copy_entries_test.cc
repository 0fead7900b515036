// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/copy_entries.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

using ::testing::Each;

constexpr SortKey kSortKey(2, 999);

// One that was written, and `size` that follow: rows 1, 1, 2, 2, 3, ... in
// samples 0, 1, 0, 1, ...
std::vector<uint64_t> PairsOfRows(int size) {
  std::vector<uint64_t> elements = {SortKey::Element(kSortKey.Key(1, 0), 0)};
  for (int i = 0; i < size; ++i) {
    elements.push_back(SortKey::Element(kSortKey.Key(1, 1 + i / 2), i % 2));
  }
  return elements;
}

struct Cells {
  std::vector<int32_t> rows = std::vector<int32_t>(40, -7);
  std::vector<int32_t> samples = std::vector<int32_t>(40, -7);

  CopiedEntries Copy(const std::vector<uint64_t>& elements) {
    return CopyEntries(elements, kSortKey.row_mask(), rows.data(),
                       samples.data());
  }
};

TEST(CopyEntriesTest, CopiesRowsAndSamplesOfWholeBlocks) {
  for (int size : {8, 15, 16, 20, 24}) {
    Cells cells;
    const CopiedEntries copied = cells.Copy(PairsOfRows(size));
    EXPECT_EQ(copied.size, size / 8 * 8);
    EXPECT_EQ(copied.num_rows, copied.size / 2);
    for (int i = 0; i < copied.size; ++i) {
      EXPECT_EQ(cells.rows[i], 1 + i / 2);
      EXPECT_EQ(cells.samples[i], i % 2);
    }
    EXPECT_EQ(cells.rows[copied.size], -7) << "wrote beyond the last block";
    EXPECT_EQ(cells.samples[copied.size], -7);
  }
}

TEST(CopyEntriesTest, StopsBeforeTheBlockOfAMerge) {
  for (int merge = 0; merge < 24; ++merge) {
    std::vector<uint64_t> elements = PairsOfRows(24);
    elements[1 + merge] = elements[merge];
    Cells cells;
    EXPECT_EQ(cells.Copy(elements).size, merge / 8 * 8) << merge;
  }
}

TEST(CopyEntriesTest, CopiesNothingOfLessThanABlock) {
  Cells cells;
  EXPECT_EQ(cells.Copy(PairsOfRows(7)).size, 0);
  EXPECT_EQ(cells.Copy(PairsOfRows(0)).size, 0);
  EXPECT_THAT(cells.rows, Each(-7));
}

}  // namespace
}  // namespace jte
