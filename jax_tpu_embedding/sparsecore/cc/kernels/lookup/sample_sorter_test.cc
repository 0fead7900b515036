// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/unsorted_samples.h"

namespace jte::kernels {
namespace {

using convert::Combiner;

// {ids of a sample at most, bits of a number}
using Case = std::tuple<int64_t, int>;

class SampleSorterTest : public testing::TestWithParam<Case> {};

TEST_P(SampleSorterTest, SumsTheGainsOfEachNumber) {
  const auto [most, bits] = GetParam();
  // All bits set is no number.
  const uint64_t count = (uint64_t{1} << bits) - 1;
  std::mt19937_64 random(most);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  SampleSorter sorter;  // for all of them: it keeps nothing
  for (const int64_t num_samples : {0, 1, 16, 33, 5}) {
    std::vector<uint32_t> numbers;
    std::vector<float> gains;
    std::vector<int64_t> splits = {0};
    for (int64_t s = 0; s < num_samples; ++s) {
      for (auto n = static_cast<int64_t>(random() % (most + 1)); n > 0; --n) {
        // Half of them are among the last ones, which repeat.
        const uint64_t number = random() % count;
        numbers.push_back(static_cast<uint32_t>(
            random() % 2 == 0 ? count - 1 - number % 3 : number));
        gains.push_back(uniform(random));
      }
      splits.push_back(std::ssize(numbers));
    }
    numbers.resize(numbers.size() + SampleSorter::kReadsBehind, 0xdeadbeef);

    const auto check = [&](const float* all_gains, Combiner combiner) {
      sorter.Sort({.numbers = numbers.data(),
                   .number_bits = bits,
                   .gains = all_gains,
                   .combiner = combiner},
                  num_samples, [&splits](int64_t s) { return splits[s]; });
      ASSERT_EQ(std::ssize(sorter.ends()), num_samples);
      ASSERT_EQ(sorter.entries().size(),
                num_samples == 0 ? 0 : sorter.ends().back());
      size_t next = 0;
      for (int64_t s = 0; s < num_samples; ++s) {
        Sums sums;
        for (; next < sorter.ends()[s]; ++next) {
          const auto [row, gain] = sorter.entries()[next];
          sums.emplace_back(static_cast<uint32_t>(row), gain);
        }
        const int64_t n = splits[s + 1] - splits[s];
        EXPECT_EQ(sums, SumGains(std::span(numbers).subspan(splits[s], n),
                                 [&](size_t i) {
                                   return all_gains != nullptr
                                              ? all_gains[splits[s] + i]
                                              : convert::UnweightedGain(
                                                    combiner, n);
                                 }))
            << "sample " << s << " of " << num_samples;
      }
    };
    check(gains.data(), Combiner::kSum);
    check(nullptr, Combiner::kSum);
    check(nullptr, Combiner::kMean);
    check(nullptr, Combiner::kSqrtn);
  }
}

// One id each, few, those that fit lanes and registers, and more; with 31 and
// 32 bits for the row, its position in the sample does not fit as well.
INSTANTIATE_TEST_SUITE_P(Cases, SampleSorterTest,
                         testing::Combine(testing::Values(0, 1, 4, 20, 100, 128,
                                                          129, 1000),
                                          testing::Values(3, 20, 31, 32)));

}  // namespace
}  // namespace jte::kernels
