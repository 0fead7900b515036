// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::convert {
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
    for (size_t n : {0, 1, 2, 31, 32, 33, 34, 100, 1000, 5001}) {
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

TEST(SortElementsTest, SortsMoreElementsThanTwoDigitsTellApart) {
  std::vector<uint64_t> elements = RandomElements(600'000, 31, 1);
  std::vector<uint64_t> expected = elements;
  std::ranges::sort(expected);
  std::vector<uint64_t> buffer(elements.size());
  EXPECT_TRUE(std::ranges::equal(SortElements(elements, buffer, 31), expected));
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

// Keys that agree in the bits that tell random ones apart.
TEST(SortElementsTest, SortsKeysThatShareTheirLeadingBits) {
  for (const size_t n : {33, 1000, 50000}) {
    for (const uint64_t num_clusters : {1, 2, 100}) {
      for (const int low_bits : {1, 3, 5, 10, 14}) {
        std::mt19937_64 random(n);
        std::vector<uint64_t> elements(n), buffer(n);
        for (size_t i = 0; i < n; ++i) {
          const uint64_t cluster = random() % num_clusters * 0x1234567;
          const uint64_t low = random() & ((uint64_t{1} << low_bits) - 1);
          elements[i] = (((cluster << low_bits | low) & 0x7fffffff) << 32) | i;
        }
        std::vector<uint64_t> expected = elements;
        std::ranges::sort(expected);
        EXPECT_THAT(SortElements(elements, buffer, 31),
                    ElementsAreArray(expected))
            << n << " elements, " << num_clusters << " clusters, " << low_bits
            << " bits";
      }
    }
  }
}

// A hot row among rows that agree with it in the leading bits.
TEST(SortElementsTest, SortsAHotKeyAndItsNeighbours) {
  std::vector<uint64_t> elements(4000), buffer(4000);
  for (uint64_t i = 0; i < elements.size(); ++i) {
    const uint64_t key = i % 10 != 0 ? 500 : 500 + (i % 7) - 3;
    elements[i] = (key << 32) | i;
  }
  std::vector<uint64_t> expected = elements;
  std::ranges::sort(expected);
  EXPECT_THAT(SortElements(elements, buffer, 31), ElementsAreArray(expected));
}

TEST(SortElementsTest, SortsDescendingKeys) {
  std::vector<uint64_t> elements(3000), buffer(3000);
  for (uint64_t i = 0; i < elements.size(); ++i) {
    elements[i] = ((elements.size() - i) << 32) | i;
  }
  std::vector<uint64_t> expected = elements;
  std::ranges::sort(expected);
  EXPECT_THAT(SortElements(elements, buffer, 31), ElementsAreArray(expected));
}

}  // namespace
}  // namespace jte::convert
