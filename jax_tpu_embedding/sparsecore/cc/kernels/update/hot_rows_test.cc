// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/hot_rows.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

namespace {

// One row after the other, with so many entries.
std::vector<Entry> Rows(std::span<const int64_t> sizes) {
  std::vector<Entry> entries;
  for (size_t row = 0; row < sizes.size(); ++row) {
    entries.resize(entries.size() + sizes[row],
                   {.row = static_cast<int32_t>(row), .sample = 0, .gain = 1});
  }
  return entries;
}

TEST(HotRowsTest, AreThoseWithManyEntries) {
  constexpr int64_t kMin = kMinHotEntries;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {},
           {1},
           {kMin - 1},
           {kMin},
           {kMin, kMin, kMin + 1},
           {5, kMin - 1, kMin, 3, 7, 1000, 1, kMin + 1, kMin - 1},
           {kMin / 2, kMin / 2, 10 * kMin, kMin - 2, 2, kMin},
           {1, 2, 3, 4, 5, 300, 6, 5000}}) {
    // Wherever the first row begins.
    for (int64_t shift = 0; shift < kMin; ++shift) {
      std::vector<int64_t> shifted = {shift};
      shifted.insert(shifted.end(), sizes.begin(), sizes.end());
      const std::vector<Entry> entries = Rows(shifted);
      std::vector<int64_t> expected;
      for (const int64_t size : shifted) {
        if (size >= kMin) expected.push_back(size);
      }
      std::vector<int64_t> found;
      for (const auto& [begin, end] :
           FindHotRows(SortedOrder{entries.data()}, std::ssize(entries))) {
        found.push_back(end - begin);
        ASSERT_EQ(std::ranges::count(entries, entries[begin].row, &Entry::row),
                  end - begin);
        EXPECT_EQ(entries[begin].row, entries[end - 1].row);
      }
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(HotRowsTest, PayWhereTheGradientLeavesTheCache) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kNumSamples = int64_t{1} << 12;  // 1 MiB
  const std::vector<const float*> arrays(2);
  const std::span one = std::span(arrays).first(1);
  ActivationGradient gradient =
      MakeActivationGradient(one, 1, kNumSamples, kDim);
  EXPECT_TRUE(HotRowsPay(gradient, kNumSamples));
  EXPECT_FALSE(HotRowsPay(gradient, kNumSamples - 1));
  EXPECT_FALSE(HotRowsPay(MakeActivationGradient(arrays, 1, kNumSamples, kDim),
                          kNumSamples));
  gradient.num_sources = 2;
  EXPECT_FALSE(HotRowsPay(gradient, kNumSamples));
}

TEST(HotRowsTest, HaveTheBitsOfRowsThatAreSummedOneByOne) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (const int64_t dim : {1, 40, 130}) {
    // Five blocks of samples and a part of one.
    const int64_t num_samples = kSampleBlockBytes / 4 / dim * 5 + 3;
    std::vector<float> values(num_samples * dim);
    for (float& value : values) value = uniform(random);
    std::vector<Entry> entries =
        Rows(std::vector<int64_t>{3, 100, 1, 2000, kMinHotEntries, 5});
    for (Entry& entry : entries) {
      entry.sample = static_cast<int32_t>(random() % num_samples);
      entry.gain = uniform(random);
    }
    // The entries of row 3 stay out of order.
    std::ranges::sort(entries, {}, [](const Entry& entry) {
      return std::pair(entry.row, entry.row == 3 ? 0 : entry.sample);
    });
    const SortedOrder order{entries.data()};
    const float* array = values.data();
    const ActivationGradient gradient =
        MakeActivationGradient(std::span(&array, 1), 1, num_samples, dim);
    const std::vector<EntryRange> hot = FindHotRows(order, std::ssize(entries));
    ASSERT_EQ(hot.size(), 3);

    std::vector<int32_t> rows(6);
    std::vector<float> sums(6 * dim);
    SumRows(order, 0, std::ssize(entries), gradient, 6, rows.data(),
            sums.data());
    std::vector<float> expected;
    for (const int64_t row : {1, 3, 4}) {
      expected.insert(expected.end(), sums.begin() + row * dim,
                      sums.begin() + (row + 1) * dim);
    }
    EXPECT_EQ(SumHotRows(order, hot, gradient, num_samples), expected);
  }
}

}  // namespace

}  // namespace jte::kernels
