// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte {
namespace {

using ::testing::ElementsAreArray;

// Elements with random keys below 2^num_key_bits, and ordinals as payload.
std::vector<uint64_t> RandomElements(size_t n, int num_key_bits,
                                     uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> elements(n);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t key = random() & ((uint64_t{1} << num_key_bits) - 1);
    elements[i] = (key << 32) | i;
  }
  return elements;
}

TEST(SortElementsTest, EqualsAComparisonSortOfWholeElements) {
  for (int num_key_bits : {0, 1, 7, 11, 12, 20, 22, 23, 31, 32}) {
    for (size_t n : {0, 1, 2, 100, 128, 129, 130, 1000, 5001}) {
      std::vector<uint64_t> elements = RandomElements(n, num_key_bits, n);
      std::vector<uint64_t> expected = elements;
      std::ranges::sort(expected);
      std::vector<uint64_t> buffer(n);
      EXPECT_THAT(SortElements(elements, buffer, num_key_bits),
                  ElementsAreArray(expected))
          << num_key_bits << " bits, " << n << " elements";
    }
  }
}

TEST(SortElementsTest, KeepsTheOrderOfEqualKeys) {
  std::vector<uint64_t> elements(1000), buffer(1000);
  for (uint64_t i = 0; i < elements.size(); ++i) {
    elements[i] = (uint64_t{i % 2} << 32) | i;
  }
  const auto sorted = SortElements(elements, buffer, 20);
  for (uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(sorted[i], 2 * i);
    EXPECT_EQ(sorted[500 + i], (uint64_t{1} << 32) | (2 * i + 1));
  }
}

TEST(SortElementsTest, SkipsDigitsThatAllElementsShare) {
  std::vector<uint64_t> elements = RandomElements(1000, 3, 1);
  for (uint64_t& element : elements) element |= uint64_t{0xabc00} << 32;
  std::vector<uint64_t> expected = elements;
  std::ranges::sort(expected);
  std::vector<uint64_t> buffer(elements.size());
  EXPECT_THAT(SortElements(elements, buffer, 20), ElementsAreArray(expected));
}

}  // namespace
}  // namespace jte
