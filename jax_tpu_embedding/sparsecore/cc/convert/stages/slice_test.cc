// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SliceTest, APartHasSomeSamplesWithTheirIdsAndWeights) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5};
  const std::vector<float> weights = {0.0f, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  Slice slice = {.samples = {.first = 20, .size = 3, .first_sample_id = 7},
                 .ids = std::span(ids),
                 .weights = weights,
                 .valency = 2};
  const auto expect_last_two = [](const Slice& part, int64_t first_id) {
    EXPECT_EQ(part.samples.first, 21);
    EXPECT_EQ(part.samples.size, 2);
    EXPECT_EQ(part.samples.first_sample_id, 8);
    EXPECT_EQ(part.num_ids(), 6 - first_id);
    EXPECT_EQ(std::get<std::span<const int32_t>>(part.ids).front(), first_id);
    EXPECT_EQ(part.weights->front(), 0.1f * static_cast<float>(first_id));
  };
  expect_last_two(slice.Part(1, 3), 2);
  // Three samples, of which the second has no ids.
  const std::vector<int64_t> row_splits = {100, 101, 101, 106};
  slice.valency = 0;
  slice.row_splits = row_splits;
  const Slice part = slice.Part(1, 3);
  expect_last_two(part, 1);
  EXPECT_THAT(part.row_splits, ElementsAre(101, 101, 106));
}

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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

FeatureInput Feature(IdPolicy ids, WeightPolicy weights) {
  return {.name = "f",
          .vocabulary_size = 10,
          .out_of_range_ids = ids,
          .non_finite_weights = weights};
}

FeatureInput Feature(IdPolicy ids) {
  return Feature(ids, WeightPolicy::kError);
}

// Samples 4, 5, ... of 2 ids each.
template <typename Id>
Slice PairsOf(const std::vector<Id>& ids) {
  return {.samples = {.first = 4, .size = std::ssize(ids) / 2},
          .ids = std::span<const Id>(ids),
          .weights = std::nullopt,
          .valency = 2,
          .row_splits = {}};
}

TEST(CleanTest, DropsIdsAndKeepsTheirSamples) {
  const std::vector<int32_t> ids = {-1, 3, 9, 0, 10, -7};
  const auto clean =
      Clean(Feature(IdPolicy::kDrop), Combiner::kSum, PairsOf(ids));
  ASSERT_TRUE(clean) << clean.error().message;
  EXPECT_THAT(clean->ids, ElementsAre(3, 9, 0));
  EXPECT_THAT(clean->row_splits, ElementsAre(0, 1, 3, 3));
  EXPECT_EQ(clean->dropped_id_count, 3);
  const Slice view = clean->View();
  EXPECT_EQ(view.samples.first, 4);
  EXPECT_EQ(view.num_ids(), 3);
  EXPECT_FALSE(view.weights);
}

TEST(CleanTest, ClampsIdsToTheNearestRow) {
  const std::vector<int64_t> ids = {-1, 3, int64_t{1} << 40, 10};
  const auto clean =
      Clean(Feature(IdPolicy::kClamp), Combiner::kSum, PairsOf(ids));
  ASSERT_TRUE(clean) << clean.error().message;
  EXPECT_THAT(clean->ids, ElementsAre(0, 3, 9, 9));
  EXPECT_EQ(clean->dropped_id_count, 0);
}

TEST(CleanTest, TakesIdsModuloTheVocabulary) {
  const std::vector<int64_t> ids = {-1, -10,
                                    std::numeric_limits<int64_t>::min(), 23};
  // -2^63 = -9223372036854775808.
  EXPECT_THAT(
      Clean(Feature(IdPolicy::kModulo), Combiner::kSum, PairsOf(ids))->ids,
      ElementsAre(9, 0, 2, 3));
  const std::vector<uint64_t> hashes = {
      std::numeric_limits<uint64_t>::max(),  // 18446744073709551615
      uint64_t{1} << 63};                    // 9223372036854775808
  EXPECT_THAT(
      Clean(Feature(IdPolicy::kModulo), Combiner::kSum, PairsOf(hashes))->ids,
      ElementsAre(5, 8));
  EXPECT_THAT(
      Clean(Feature(IdPolicy::kClamp), Combiner::kSum, PairsOf(hashes))->ids,
      ElementsAre(9, 9));
}

TEST(CleanTest, NamesTheFirstIdThatIsAnError) {
  const std::vector<int32_t> ids = {1, 2, 3, 10, -1, 0};
  const auto clean =
      Clean(Feature(IdPolicy::kError), Combiner::kSum, PairsOf(ids));
  ASSERT_FALSE(clean);
  EXPECT_EQ(clean.error().message,
            "Feature 'f': sample 5 has id 10 at position 1, outside of [0, "
            "10), the range of its table. Map ids into the range, raise "
            "vocabulary_size, or set the feature's out_of_range_ids to 'drop', "
            "'clamp' or 'modulo'.");
}

TEST(CleanTest, ReadsRowSplitsFromAnyNumberOn) {
  const std::vector<int32_t> ids = {1, -1, 2};
  const std::vector<int64_t> row_splits = {7, 7, 9, 10};
  Slice slice = PairsOf(ids);
  slice.samples.size = 3;
  slice.row_splits = row_splits;
  const auto clean = Clean(Feature(IdPolicy::kDrop), Combiner::kSum, slice);
  EXPECT_THAT(clean->ids, ElementsAre(1, 2));
  EXPECT_THAT(clean->row_splits, ElementsAre(0, 0, 1, 2));
}

TEST(CleanTest, WeightsThatAddUpToMoreThanFloat32AreErrors) {
  const std::vector<int32_t> ids = {0, 1, 0, 1};
  const std::vector<float> weights = {1, 2, 1e20f, 1e20f};
  Slice slice = PairsOf(ids);
  slice.weights = weights;
  EXPECT_TRUE(Clean(Feature(IdPolicy::kDrop), Combiner::kMean, slice));
  const auto clean = Clean(Feature(IdPolicy::kDrop), Combiner::kSqrtn, slice);
  ASSERT_FALSE(clean);
  EXPECT_THAT(clean.error().message,
              HasSubstr("sample 5 has weights whose sum of squares"));
  EXPECT_TRUE(Clean(Feature(IdPolicy::kDrop, WeightPolicy::kKeep),
                    Combiner::kSqrtn, slice));
}

class CleanWeightsTest : public testing::Test {
 protected:
  Result<CleanSlice> CleanWith(WeightPolicy policy) {
    Slice slice = PairsOf(ids_);
    slice.weights = weights_;
    return Clean(Feature(IdPolicy::kDrop, policy), Combiner::kSum, slice);
  }

  const std::vector<int32_t> ids_ = {0, 1, 2, 3, -1, 5};
  const std::vector<float> weights_ = {1.0f, kInfinity, -kInfinity,
                                       kNan, kNan,      0.5f};
};

TEST_F(CleanWeightsTest, Drop) {
  const auto clean = CleanWith(WeightPolicy::kDrop);
  EXPECT_THAT(clean->ids, ElementsAre(0, 5));
  EXPECT_THAT(clean->weights, ElementsAre(1.0f, 0.5f));
  EXPECT_THAT(clean->row_splits, ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(clean->dropped_id_count, 4);
}

TEST_F(CleanWeightsTest, Clamp) {
  const auto clean = CleanWith(WeightPolicy::kClamp);
  EXPECT_THAT(clean->ids, ElementsAre(0, 1, 2, 3, 5));
  EXPECT_THAT(clean->weights, ElementsAre(1.0f, kMax, -kMax, 0.0f, 0.5f));
  EXPECT_EQ(clean->dropped_id_count, 1);
}

TEST_F(CleanWeightsTest, Keep) {
  const auto clean = CleanWith(WeightPolicy::kKeep);
  EXPECT_THAT(std::span(clean->weights).first(3),
              ElementsAre(1.0f, kInfinity, -kInfinity));
  EXPECT_TRUE(std::isnan(clean->weights[3]));
}

TEST_F(CleanWeightsTest, ErrorNamesTheFirst) {
  const auto clean = CleanWith(WeightPolicy::kError);
  ASSERT_FALSE(clean);
  EXPECT_EQ(clean.error().message,
            "Feature 'f': sample 4 has weight inf at position 1, and weights "
            "must be finite. Correct it, or set the feature's "
            "non_finite_weights to 'drop', 'clamp' or 'keep'.");
}

TEST(ParsePolicyTest, ListsTheChoices) {
  EXPECT_EQ(ParseIdPolicy("modulo"), IdPolicy::kModulo);
  EXPECT_EQ(ParseWeightPolicy("keep"), WeightPolicy::kKeep);
  EXPECT_THAT(ParseIdPolicy("Drop").error().message,
              HasSubstr("out_of_range_ids must be one of 'error', 'drop', "
                        "'clamp', 'modulo', got 'Drop'."));
  EXPECT_THAT(ParseWeightPolicy("modulo").error().message,
              HasSubstr("non_finite_weights must be one of 'error', 'drop', "
                        "'clamp', 'keep', got 'modulo'."));
}

}  // namespace
}  // namespace jte::convert
