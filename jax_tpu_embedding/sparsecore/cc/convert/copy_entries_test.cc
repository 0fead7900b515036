// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/copy_entries.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/entry_reader.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

using ::testing::Each;

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

  // Of the cells, the first n may be written.
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

}  // namespace
}  // namespace jte
