// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/unsorted_samples.h"

namespace jte::kernels {
namespace {

constexpr int64_t kLanes = SampleLanes::kLanes;
constexpr int64_t kMaxIds = SampleLanes::kMaxIds;

Sums ActualSums(const SampleLanes& lanes, int64_t sample, int64_t size) {
  std::vector<WeightedRow> entries(size);
  entries.resize(lanes.Write(sample, entries.data()) - entries.data());
  Sums sums;
  for (const auto [row, gain] : entries) {
    sums.emplace_back(static_cast<uint32_t>(row), gain);
  }
  return sums;
}

class SampleLanesTest : public testing::TestWithParam<int64_t> {};

TEST_P(SampleLanesTest, SumTheGainsOfEachNumber) {
  std::mt19937_64 random(GetParam());
  SampleLanes lanes;  // for all of them: it keeps nothing
  // With 25 bits and up to 128 ids, numbers and positions have 32 bits or
  // more.
  for (const int bits : {2, 8, 20, 24, 25, 26, 27, 28, 30, 31, 32}) {
    const Samples samples = RandomSamples(GetParam(), bits, random);
    for (const bool has_gains : {false, true, false}) {
      if (has_gains) {
        lanes.Sort(samples.numbers.data(), samples.begins, bits,
                   samples.gains.data());
      } else {
        lanes.Sort(samples.numbers.data(), samples.begins, samples.same_gains);
      }
      for (int64_t k = 0; k < kLanes; ++k) {
        EXPECT_EQ(ActualSums(lanes, k, samples.size(k)),
                  ExpectedSums(samples, k, has_gains))
            << "sample " << k << ", " << bits << " bits, gains: " << has_gains;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SampleLanesTest,
                         testing::Range<int64_t>(0, kMaxIds + 1));

// Nothing repeats, and every lane is full.
TEST(SampleLanesTest, SortSamplesOfEverySize) {
  std::mt19937_64 random(1);
  for (int64_t size = 1; size <= kMaxIds; ++size) {
    std::vector<uint32_t> numbers(kLanes * size);
    std::vector<float> gains(kLanes * size);
    SampleLanes::Begins begins;
    for (int64_t k = 0; k <= kLanes; ++k) begins[k] = k * size;
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<uint32_t>((random() << 11 | i) & 0x7fffffff);
      gains[i] = static_cast<float>(numbers[i]);
    }
    numbers.resize(numbers.size() + SampleLanes::kReadsBehind);
    SampleLanes lanes;
    lanes.Sort(numbers.data(), begins, 31, gains.data());
    for (int64_t k = 0; k < kLanes; ++k) {
      const Sums sums = ActualSums(lanes, k, size);
      ASSERT_EQ(std::ssize(sums), size);
      for (int64_t i = 0; i < size; ++i) {
        EXPECT_EQ(sums[i].second, static_cast<float>(sums[i].first));
      }
      EXPECT_TRUE(std::ranges::is_sorted(sums));
    }
  }
}

// What was sorted before is not taken for a repeat.
TEST(SampleLanesTest, KeepNothing) {
  SampleLanes lanes;
  for (const int64_t size : {12, 8, 4}) {
    const std::vector<uint32_t> numbers(
        kLanes * size + SampleLanes::kReadsBehind, 7);
    SampleLanes::Begins begins;
    for (int64_t k = 0; k <= kLanes; ++k) begins[k] = k * size;
    std::array<float, kLanes> gains;
    gains.fill(1);
    lanes.Sort(numbers.data(), begins, gains);
    for (int64_t k = 0; k < kLanes; ++k) {
      EXPECT_EQ(ActualSums(lanes, k, size),
                (Sums{{7, static_cast<float>(size)}}));
    }
  }
}

// All bits of the number and of its position are set, in 32 bits.
TEST(SampleLanesTest, FindARepeatOfTheLastNumberInTheLastPlace) {
  constexpr int kBits = 25;
  constexpr uint32_t kLast = (uint32_t{1} << kBits) - 1;
  std::vector<uint32_t> numbers(kMaxIds + SampleLanes::kReadsBehind);
  std::iota(numbers.begin(), numbers.end(), 0);
  numbers[0] = kLast;
  numbers[kMaxIds - 1] = kLast;
  const std::vector<float> gains(kMaxIds, 1.0f);
  SampleLanes::Begins begins;
  begins.fill(kMaxIds);
  begins[0] = 0;
  SampleLanes lanes;
  lanes.Sort(numbers.data(), begins, kBits, gains.data());
  const Sums sums = ActualSums(lanes, 0, kMaxIds);
  ASSERT_EQ(std::ssize(sums), kMaxIds - 1);
  EXPECT_EQ(sums.back(), std::pair(kLast, 2.0f));
}

}  // namespace
}  // namespace jte::kernels
