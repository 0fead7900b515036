// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/input/sample_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

template <typename T>
StridedArray Flat(const std::vector<T>& samples) {
  return {.data = reinterpret_cast<const std::byte*>(samples.data()),
          .type = {sizeof(T) == 4 ? DType::kInt32 : DType::kInt64},
          .shape = {std::ssize(samples), 1},
          .strides = {sizeof(T), 0}};
}

struct Counted {
  bool ascending = false;
  int64_t first_out_of_range = -1;
  std::vector<int64_t> row_splits;
};

// In one pass if the samples ascend; otherwise in another.
template <typename T>
Counted Count(const std::vector<T>& samples, int64_t num_samples) {
  Counted counted = {.row_splits = std::vector<int64_t>(num_samples + 1, -9)};
  counted.ascending = SplitAscending(Flat(samples), counted.row_splits);
  if (!counted.ascending) {
    std::vector<int64_t> copy(samples.size(), -9);
    counted.first_out_of_range =
        CountSamples(Flat(samples), copy, counted.row_splits);
    if (counted.first_out_of_range < 0) {
      EXPECT_THAT(copy, ElementsAreArray(samples));
    }
  }
  return counted;
}

TEST(CountSamplesTest, SamplesMayBeEmpty) {
  const Counted counted = Count<int32_t>({1, 1, 4}, 6);
  EXPECT_TRUE(counted.ascending);
  EXPECT_THAT(counted.row_splits, ElementsAre(0, 0, 2, 2, 2, 3, 3));
  EXPECT_THAT(Count<int64_t>({}, 2).row_splits, ElementsAre(0, 0, 0));
  EXPECT_THAT(Count<int64_t>({}, 0).row_splits, ElementsAre(0));
}

// Wherever it is, also where a sample continues from one block to the next.
TEST(CountSamplesTest, FindsWhatIsOutOfRange) {
  constexpr int64_t kNumSamples = 3;
  for (const int64_t position : {0, 1, 511, 512, 513, 1023, 1200}) {
    for (const int64_t sample : {int64_t{-1}, kNumSamples}) {
      std::vector<int64_t> samples(1201, 1);
      samples[position] = sample;
      EXPECT_EQ(Count(samples, kNumSamples).first_out_of_range, position);
      EXPECT_EQ(Count(std::vector<int32_t>(samples.begin(), samples.end()),
                      kNumSamples)
                    .first_out_of_range,
                position);
    }
  }
}

TEST(CountSamplesTest, FindsWhatIsNotInOrder) {
  for (const int64_t position : {1, 511, 512, 513, 1023, 1200}) {
    std::vector<int64_t> samples(1201, 1);
    samples[position] = 0;
    const Counted counted = Count(samples, 2);
    EXPECT_EQ(counted.first_out_of_range, -1);
    EXPECT_FALSE(counted.ascending);
    EXPECT_THAT(counted.row_splits, ElementsAre(0, 1, 1201));
  }
}

TEST(CountSamplesTest, CountsEachSample) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int64_t num_samples = 1 + random() % 300;
    std::vector<int64_t> samples(random() % 2000);
    for (int64_t& sample : samples) sample = random() % num_samples;
    const bool ascending = round % 2 == 0;
    if (ascending) std::ranges::sort(samples);
    const Counted counted = Count(samples, num_samples);
    EXPECT_EQ(counted.first_out_of_range, -1);
    EXPECT_EQ(counted.ascending, std::ranges::is_sorted(samples));
    for (int64_t r = 0; r < num_samples; ++r) {
      EXPECT_EQ(counted.row_splits[r + 1] - counted.row_splits[r],
                std::ranges::count(samples, r));
    }
  }
}

}  // namespace
}  // namespace jte::convert
