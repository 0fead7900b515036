// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace jte::ffi {
namespace {

constexpr size_t kTableBytes = TableMemory::kMinBytes;

// Memory that nobody reads or writes.
std::span<std::byte> At(uintptr_t address, size_t size) {
  return {reinterpret_cast<std::byte*>(address), size};
}

// Where moved memory began, and its size.
using Moves = std::vector<std::pair<uintptr_t, size_t>>;

class TableMemoryTest : public testing::Test {
 protected:
  void Use(std::span<std::byte> memory, int64_t count) {
    for (int64_t i = 0; i < count; ++i) memory_.Used(memory);
  }

  Moves moves_;
  bool is_huge_ = false;
  TableMemory memory_{[this](std::span<std::byte> part) {
                        moves_.emplace_back(
                            reinterpret_cast<uintptr_t>(part.data()),
                            part.size());
                        is_huge_ = true;
                      },
                      [this](const std::byte*) { return is_huge_; }};
};

TEST_F(TableMemoryTest, MovesTablesOnceAfterAFewUses) {
  Use(At(100, kTableBytes), TableMemory::kNumUses - 1);
  EXPECT_EQ(moves_, Moves());
  Use(At(100, kTableBytes), 1);
  const Moves expected = {{100, kTableBytes}};
  EXPECT_EQ(moves_, expected);
  Use(At(100, kTableBytes), 500);
  EXPECT_EQ(moves_, expected);
}

TEST_F(TableMemoryTest, MovesLargeTablesPartByPart) {
  constexpr size_t kPart = TableMemory::kBytesPerUse;
  Use(At(100, 2 * kPart + 5), TableMemory::kNumUses + 10);
  EXPECT_EQ(moves_,
            (Moves{{100, kPart}, {100 + kPart, kPart}, {100 + 2 * kPart, 5}}));
}

TEST_F(TableMemoryTest, CountsEveryTableByItself) {
  for (int64_t i = 0; i < TableMemory::kNumUses; ++i) {
    Use(At(100, kTableBytes), 1);
    Use(At(200, kTableBytes + 1), 1);
  }
  EXPECT_EQ(moves_, (Moves{{100, kTableBytes}, {200, kTableBytes + 1}}));
}

TEST_F(TableMemoryTest, StartsAgainWithOtherMemoryAtTheSameAddress) {
  Use(At(100, kTableBytes), TableMemory::kNumUses);
  Use(At(100, kTableBytes + 7), TableMemory::kNumUses - 1);
  EXPECT_EQ(moves_.size(), 1);
  Use(At(100, kTableBytes + 7), 1);
  EXPECT_EQ(moves_, (Moves{{100, kTableBytes}, {100, kTableBytes + 7}}));
}

TEST_F(TableMemoryTest, MovesAgainNowAndThen) {
  Use(At(100, kTableBytes), 3 * TableMemory::kNumUsesToRepeat);
  EXPECT_EQ(moves_, Moves(3, {100, kTableBytes}));
}

TEST_F(TableMemoryTest, MovesOtherMemoryAtTheSameAddress) {
  constexpr int64_t kLook = TableMemory::kNumUsesToLook;
  for (size_t n = 1; n < 5; ++n) {
    Use(At(100, kTableBytes), TableMemory::kNumUses - 1);
    EXPECT_EQ(moves_.size(), n - 1);
    Use(At(100, kTableBytes), 1);
    EXPECT_EQ(moves_, Moves(n, {100, kTableBytes}));
    Use(At(100, kTableBytes), 2 * kLook);  // looks twice, and then next
    is_huge_ = false;
  }
}

TEST_F(TableMemoryTest, WaitsTwiceAsLongWhereTheMemoryBeforeWasGoneSoon) {
  constexpr int64_t kLook = TableMemory::kNumUsesToLook;
  size_t n = 0;
  for (int64_t wait = TableMemory::kNumUses;
       wait <= TableMemory::kNumUsesToRepeat; wait *= 2) {
    Use(At(100, kTableBytes), wait - 1);
    EXPECT_EQ(moves_.size(), n) << wait;
    Use(At(100, kTableBytes), 1);
    EXPECT_EQ(moves_, Moves(++n, {100, kTableBytes})) << wait;
    Use(At(100, kTableBytes), kLook);  // looks, and then next
    is_huge_ = false;
  }
  // No longer than where the system does not tell.
  Use(At(100, kTableBytes), TableMemory::kNumUsesToRepeat - 1);
  EXPECT_EQ(moves_.size(), n);
  Use(At(100, kTableBytes), 1);
  EXPECT_EQ(moves_.size(), n + 1);
}

TEST_F(TableMemoryTest, MovesMemoryInVainNowAndThenOnly) {
  TableMemory memory([this](std::span<std::byte>) { moves_.emplace_back(); },
                     [](const std::byte*) { return false; });
  for (int64_t i = 0; i < TableMemory::kNumUsesToRepeat; ++i) {
    memory.Used(At(100, kTableBytes));
  }
  EXPECT_EQ(moves_.size(), 1);
}

TEST_F(TableMemoryTest, LeavesSmallAndPassingMemoryAlone) {
  Use(At(100, kTableBytes - 1), 100);
  for (uintptr_t address = 0; address < 10000; ++address) {
    Use(At(address * kTableBytes, kTableBytes), TableMemory::kNumUses - 1);
  }
  EXPECT_EQ(moves_, Moves());
}

}  // namespace
}  // namespace jte::ffi
