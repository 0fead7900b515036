// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace jte::convert {
namespace {

TEST(SortKeyTest, TakesNoMoreBitsThanNeeded) {
  EXPECT_EQ(SortKey(1, 0).num_bits(), 0);
  EXPECT_EQ(SortKey(1, 7).num_bits(), 3);
  EXPECT_EQ(SortKey(4, 7).num_bits(), 5);
  EXPECT_EQ(SortKey(5, 8).num_bits(), 7);
}

TEST(SortKeyTest, UnpacksWhatItPacks) {
  const uint32_t largest_column = std::numeric_limits<int32_t>::max();
  for (uint32_t num_scs : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 127u, 4096u, 5000u}) {
    const uint32_t max_row = largest_column / num_scs;
    const SortKey sort_key(num_scs, max_row);
    ASSERT_LE(sort_key.num_bits(), 32);
    for (uint32_t partition : {0u, num_scs / 2, num_scs - 1}) {
      for (uint32_t row : {0u, max_row / 3, max_row}) {
        const uint32_t key = sort_key.Key(partition, row);
        const uint64_t element = SortKey::Element(key, 0xfedcba98);
        EXPECT_EQ(sort_key.PartitionOf(element), partition);
        EXPECT_EQ(sort_key.PartitionOfKey(key), partition);
        EXPECT_EQ(sort_key.RowOf(key), row);
        EXPECT_EQ(SortKey::KeyOf(element), key);
        EXPECT_EQ(SortKey::PayloadOf(element), 0xfedcba98);
      }
    }
  }
}

TEST(SortKeyTest, OrdersByPartitionThenRowThenPayload) {
  const SortKey sort_key(3, 9);
  const auto element = [&sort_key](uint32_t partition, uint32_t row,
                                   uint32_t payload) {
    return SortKey::Element(sort_key.Key(partition, row), payload);
  };
  EXPECT_LT(element(0, 9, 5), element(1, 0, 0));
  EXPECT_LT(element(1, 2, 5), element(1, 3, 0));
  EXPECT_LT(element(1, 2, 5), element(1, 2, 6));
}

}  // namespace
}  // namespace jte::convert
