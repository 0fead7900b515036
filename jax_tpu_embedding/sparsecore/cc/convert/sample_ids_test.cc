// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/sample_ids.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte {
namespace {

using ::testing::ElementsAre;

// All samples, asked for in blocks of any size.
std::vector<uint32_t> ReadAll(const Slice& slice) {
  std::mt19937 random(1);
  SampleIds sample_ids(slice);
  const int64_t size = slice.num_ids();
  std::vector<uint32_t> samples(size + SampleIds::kSlack);
  for (int64_t done = 0; done < size;) {
    const int64_t n = std::min<int64_t>(random() % 70, size - done);
    sample_ids.Next(n, samples.data() + done);
    done += n;
  }
  samples.resize(size);
  return samples;
}

TEST(SampleIdsTest, CountsFromTheFirstSampleOfTheSlice) {
  const Slice matrix = {
      .samples = {.size = 3, .first_sample_id = 7}, .ids = {}, .valency = 2};
  EXPECT_THAT(ReadAll(matrix), ElementsAre(7, 7, 8, 8, 9, 9));
  const std::vector<int64_t> row_splits = {100, 102, 102, 103};
  const Slice ragged = {.samples = {.size = 3, .first_sample_id = 7},
                        .ids = {},
                        .row_splits = row_splits};
  EXPECT_THAT(ReadAll(ragged), ElementsAre(7, 7, 9));
}

TEST(SampleIdsTest, AMatrixHasTheSamplesOfEqualRows) {
  for (int64_t valency : {1, 2, 3, 7, 15, 16, 17, 100, 65537, 1 << 20}) {
    const int64_t num_samples = valency < 1000 ? 1000 : 3;
    std::vector<int64_t> row_splits;
    for (int64_t r = 0; r <= num_samples; ++r) {
      row_splits.push_back(r * valency);
    }
    const SampleRange samples = {.size = num_samples, .first_sample_id = 5};
    const std::vector<uint32_t> of_matrix =
        ReadAll({.samples = samples, .ids = {}, .valency = valency});
    EXPECT_EQ(
        of_matrix,
        ReadAll({.samples = samples, .ids = {}, .row_splits = row_splits}));
    for (int64_t i = 0; i < std::ssize(of_matrix); ++i) {
      ASSERT_EQ(of_matrix[i], 5 + i / valency) << valency << ' ' << i;
    }
  }
}

TEST(SampleIdsTest, RepeatsEverySampleOnceForEachOfItsIds) {
  std::mt19937 random(1);
  for (int largest : {1, 3, 40, 1000}) {
    std::vector<int64_t> row_splits = {0};
    std::vector<uint32_t> expected;
    for (uint32_t r = 0; r < 300; ++r) {
      expected.insert(expected.end(), random() % (largest + 1), r);
      row_splits.push_back(std::ssize(expected));
    }
    EXPECT_EQ(
        ReadAll(
            {.samples = {.size = 300}, .ids = {}, .row_splits = row_splits}),
        expected);
  }
}

}  // namespace
}  // namespace jte
