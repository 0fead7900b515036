// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/random_bits.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"

namespace jte::kernels {
namespace {

using ::testing::ElementsAre;

using Key = std::array<uint32_t, 2>;

std::vector<uint32_t> Draw(Executor& executor, Key key,
                           const std::vector<uint32_t>& rows, uint32_t width,
                           size_t num_columns) {
  std::vector<uint32_t> bits(rows.size() * num_columns);
  DrawRandomBits(executor, key, rows, width, bits);
  return bits;
}

std::vector<uint32_t> Draw(Key key, const std::vector<uint32_t>& rows,
                           uint32_t width, size_t num_columns) {
  InlineExecutor executor;
  return Draw(executor, key, rows, width, num_columns);
}

// The known answers that Random123 has for threefry2x32 of 20 rounds.
TEST(DrawRandomBitsTest, HasTheKnownAnswers) {
  EXPECT_THAT(Draw({0, 0}, {0}, 1, 1), ElementsAre(0x6b200159 ^ 0x99ba4efe));
  // The position is 0x243f6a8885a308d3.
  EXPECT_EQ(Draw({0x13198a2e, 0x03707344}, {793710635}, 3290775414, 2)[1],
            0xc4923a9c ^ 0x483df7a0);
}

// What the words of one position are, whatever is drawn together.
TEST(DrawRandomBitsTest, DependsOnThePositionAlone) {
  const Key key = {7, 9};
  std::mt19937 random(0);
  ThreadExecutor executor(3);
  for (size_t num_columns : {1, 3, 16, 128, 511, 512, 513, 2000}) {
    const auto width = static_cast<uint32_t>(num_columns);
    std::vector<uint32_t> rows(40000 / num_columns);
    for (uint32_t& row : rows) row = random();
    const std::vector<uint32_t> bits =
        Draw(executor, key, rows, width, num_columns);
    EXPECT_EQ(bits, Draw(key, rows, width, num_columns));
    for (int i = 0; i < 100; ++i) {
      const size_t k = random() % bits.size();
      const uint32_t row = rows[k / num_columns];
      const auto column = static_cast<uint32_t>(k % num_columns);
      EXPECT_EQ(bits[k], Draw(key, {row}, width, column + 1)[column]);
    }
  }
}

// The lower word overflows within a row.
TEST(DrawRandomBitsTest, PositionsHave64Bits) {
  const Key key = {1, 2};
  const uint32_t row = 0xffffffffu / 3;  // Its first position is 2^32 - 1.
  const std::vector<uint32_t> bits = Draw(key, {row}, 3, 3);
  EXPECT_EQ(bits[0], Draw(key, {0xffffffff}, 1, 1)[0]);
  // 2^32 is that of row 2^16 of 2^16 columns.
  EXPECT_EQ(bits[1], Draw(key, {0x10000}, 0x10000, 1)[0]);
  EXPECT_EQ(bits[2], Draw(key, {0x10000}, 0x10000, 2)[1]);
}

TEST(DrawRandomBitsTest, ColumnsBeyondTheTableAreOfLaterRows) {
  const std::vector<uint32_t> bits = Draw({1, 2}, {5, 9}, 4, 8);
  const std::vector<uint32_t> next = Draw({1, 2}, {6, 10}, 4, 4);
  for (size_t column = 0; column < 4; ++column) {
    EXPECT_EQ(bits[4 + column], next[column]);
    EXPECT_EQ(bits[12 + column], next[4 + column]);
  }
}

TEST(DrawRandomBitsTest, NoRowsAreNothing) {
  EXPECT_THAT(Draw({1, 2}, {}, 4, 8), ElementsAre());
}

}  // namespace
}  // namespace jte::kernels
