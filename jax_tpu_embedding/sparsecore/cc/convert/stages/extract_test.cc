// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/mod_shard.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One local device of G = 1, S = 2, N = 2 unless said.
StackPlan Plan(const std::string& combiner, std::vector<FeatureInput> features,
               const Topology& topology = {.num_sc_per_device = 2}) {
  auto plan =
      PlanStack({.name = "s",
                 .combiner = combiner,
                 .max_ids_per_partition = 8,
                 .max_unique_ids_per_partition = 8},
                topology.num_sc_per_device * 64, std::move(features), topology);
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

FeatureInput Ragged(std::span<const int32_t> ids,
                    std::span<const int64_t> row_splits) {
  return {.name = "f",
          .vocabulary_size = 10,
          .batch = {.ids = ids,
                    .num_samples = std::ssize(row_splits) - 1,
                    .row_splits = row_splits}};
}

// (partition, row, sample) and gain of an element.
struct Id {
  uint32_t partition;
  uint32_t row;
  int32_t sample;
  float gain;
  friend bool operator==(const Id&, const Id&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Id& id) {
    return out << '(' << id.partition << ' ' << id.row << ' ' << id.sample
               << ' ' << id.gain << ')';
  }
};

std::vector<Id> Extract(const StackPlan& plan, int64_t local_sc) {
  Scratch scratch;
  const auto extracted = ExtractIds(plan, local_sc, scratch);
  EXPECT_TRUE(extracted) << extracted.error().message;
  std::vector<Id> ids;
  for (uint64_t element : extracted->elements) {
    const auto [sample, gain] = std::visit(
        [element](const auto& gains) {
          return gains[SortKey::PayloadOf(element)];
        },
        extracted->gains);
    ids.push_back({plan.sort_key.PartitionOf(element),
                   plan.sort_key.RowOf(SortKey::KeyOf(element)), sample, gain});
  }
  return ids;
}

TEST(ExtractIdsTest, GivesEachSparseCoreItsSamples) {
  const std::vector<int32_t> ids = {0, 0, 3, 5, 2, 1};
  const std::vector<int64_t> splits = {0, 3, 5, 5, 6};
  const StackPlan plan = Plan("mean", {Ragged(ids, splits)});
  const float third = 1.0f / 3.0f;
  EXPECT_THAT(
      Extract(plan, 0),
      ElementsAre(Id{0, 0, 0, third}, Id{0, 0, 0, third}, Id{1, 1, 0, third},
                  Id{1, 2, 1, 0.5f}, Id{0, 1, 1, 0.5f}));
  EXPECT_THAT(Extract(plan, 1), ElementsAre(Id{1, 0, 1, 1.0f}));
}

TEST(ExtractIdsTest, SumWithoutWeightsHasUnitGains) {
  const std::vector<int32_t> ids = {4, 7};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {
      .ids = std::span<const int32_t>(ids), .num_samples = 2, .valency = 1};
  EXPECT_THAT(Extract(Plan("sum", {feature}), 1),
              ElementsAre(Id{1, 3, 0, 1.0f}));
}

TEST(ExtractIdsTest, DividesWeightsByWhatTheCombinerSays) {
  const std::vector<int64_t> ids = {1, 2, 3, 4};
  const std::vector<float> weights = {3, 4, 1, 3};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {.ids = std::span<const int64_t>(ids),
                   .weights = std::span<const float>(weights),
                   .num_samples = 2,
                   .valency = 2};
  EXPECT_THAT(Extract(Plan("sqrtn", {feature}), 0),
              ElementsAre(Id{1, 0, 0, 0.6f}, Id{0, 1, 0, 0.8f}));
  EXPECT_THAT(Extract(Plan("mean", {feature}), 1),
              ElementsAre(Id{1, 1, 0, 0.25f}, Id{0, 2, 0, 0.75f}));
}

TEST(ExtractIdsTest, WhereTheDivisorIsZeroGainsAre) {
  const std::vector<int64_t> ids = {1, 2, 3, 4};
  const std::vector<float> weights = {0, 0, 1, -1};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {.ids = std::span<const int64_t>(ids),
                   .weights = std::span<const float>(weights),
                   .num_samples = 2,
                   .valency = 2};
  const auto mean = Plan("mean", {feature});
  EXPECT_THAT(Extract(mean, 0),
              ElementsAre(Id{1, 0, 0, 0.0f}, Id{0, 1, 0, 0.0f}));
  EXPECT_THAT(Extract(mean, 1),
              ElementsAre(Id{1, 1, 0, 0.0f}, Id{0, 2, 0, 0.0f}));
  const auto sqrtn = Plan("sqrtn", {feature});
  EXPECT_THAT(Extract(sqrtn, 0),
              ElementsAre(Id{1, 0, 0, 0.0f}, Id{0, 1, 0, 0.0f}));
  EXPECT_THAT(Extract(sqrtn, 1),
              ElementsAre(Id{1, 1, 0, 1 / std::sqrt(2.0f)},
                          Id{0, 2, 0, -1 / std::sqrt(2.0f)}));
}

// Its samples come after all that the SparseCore has, and have no ids.
TEST(ExtractIdsTest, AFeatureWithoutSamplesMayBeAnywhere) {
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<float> weights = {1, 1};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {.ids = std::span<const int32_t>(ids),
                   .weights = std::span<const float>(weights),
                   .num_samples = 2,
                   .valency = 1};
  FeatureInput empty = {.name = "empty", .vocabulary_size = 10};
  empty.transform.row_offset = int64_t{1} << 48;
  // The largest that there can be, and one that can divide nothing.
  for (const int64_t valency : {int64_t{0x7fffffff}, int64_t{0}}) {
    empty.batch = {.ids = std::span<const int32_t>(),
                   .weights = std::span<const float>(),
                   .valency = valency};
    EXPECT_THAT(Extract(Plan("mean", {feature, empty}), 1),
                ElementsAre(Id{0, 1, 0, 1.0f}));
  }
}

TEST(ExtractIdsTest, ShiftsTheSamplesAndRowsOfStackedFeatures) {
  const std::vector<int32_t> ids = {0, 1};
  FeatureInput a = {.name = "a", .vocabulary_size = 10};
  a.batch = {
      .ids = std::span<const int32_t>(ids), .num_samples = 2, .valency = 1};
  FeatureInput b = a;
  b.name = "b";
  b.transform = {.row_offset = 2, .col_offset = 2 * 5, .col_shift = 1};
  // Features by row offset, whatever their order.
  EXPECT_THAT(Extract(Plan("sum", {b, a}), 0),
              ElementsAre(Id{0, 0, 0, 1.0f}, Id{1, 5, 1, 1.0f}));
  EXPECT_THAT(Extract(Plan("sum", {b, a}), 1),
              ElementsAre(Id{1, 0, 0, 1.0f}, Id{0, 5, 1, 1.0f}));
}

TEST(ExtractIdsTest, AgreesWithIdTransformForAnyNumberOfSparseCores) {
  std::mt19937 random(1);
  for (int64_t num_scs : {1, 2, 3, 5, 7, 8, 12, 100, 257}) {
    FeatureInput feature = {.name = "f", .vocabulary_size = 1000003};
    feature.transform = {
        .col_offset = num_scs * 77,
        .col_shift = static_cast<int64_t>(random() % (3 * num_scs))};
    std::vector<int32_t> ids(100);
    for (int32_t& id : ids) id = random() % feature.vocabulary_size;
    ids.back() = feature.vocabulary_size - 1;
    feature.batch = {.ids = std::span<const int32_t>(ids),
                     .num_samples = 1,
                     .valency = std::ssize(ids)};
    const StackPlan plan =
        Plan("sum", {feature}, {.global_device_count = num_scs});
    const std::vector<Id> extracted = Extract(plan, 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(extracted[i].row * num_scs + extracted[i].partition,
                feature.transform.StackRow(ids[i], num_scs));
    }
  }
}

TEST(ExtractIdsTest, CountsTheSamplesOfAMatrixOfAnySize) {
  for (int64_t valency : {0, 1, 2, 3, 7, 100, 65537, 1 << 20}) {
    const int64_t num_samples = valency < 1000 ? 1000 : 3;
    const std::vector<int32_t> ids(num_samples * valency);
    FeatureInput feature = {.name = "f", .vocabulary_size = 10};
    feature.batch = {.ids = std::span<const int32_t>(ids),
                     .num_samples = num_samples,
                     .valency = valency};
    const std::vector<Id> extracted =
        Extract(Plan("sum", {feature}, {.num_sc_per_device = 1}), 0);
    ASSERT_EQ(extracted.size(), ids.size());
    for (int64_t i = 0; i < std::ssize(ids); ++i) {
      ASSERT_EQ(extracted[i].sample, i / valency) << valency << ' ' << i;
    }
  }
}

TEST(ExtractIdsTest, NamesAnIdOutsideItsTable) {
  const std::vector<int64_t> splits = {0, 1, 3};
  // The second sample belongs to the second SparseCore.
  for (const auto& [bad, name] :
       std::vector<std::pair<int32_t, std::string>>{{10, "10"}, {-1, "-1"}}) {
    const std::vector<int32_t> ids = {9, 0, bad};
    const StackPlan plan = Plan("sum", {Ragged(ids, splits)});
    Scratch scratch;
    EXPECT_TRUE(ExtractIds(plan, 0, scratch));
    const auto extracted = ExtractIds(plan, 1, scratch);
    ASSERT_FALSE(extracted);
    EXPECT_THAT(extracted.error().message,
                HasSubstr("Feature 'f': sample 1 has id " + name +
                          " at position 1, outside of [0, 10)"));
  }
}

TEST(ExtractIdsTest, DoesNotWrapWideIds) {
  const std::vector<int64_t> ids = {1, (int64_t{1} << 32) + 1};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {
      .ids = std::span<const int64_t>(ids), .num_samples = 2, .valency = 1};
  Scratch scratch;
  const auto extracted = ExtractIds(Plan("sum", {feature}), 1, scratch);
  ASSERT_FALSE(extracted);
  EXPECT_THAT(extracted.error().message, HasSubstr("id 4294967297"));
}

TEST(ExtractIdsTest, ReadsUnsignedIdsAsSuch) {
  const std::vector<uint32_t> ids = {1, 0x80000001};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.batch = {
      .ids = std::span<const uint32_t>(ids), .num_samples = 2, .valency = 1};
  Scratch scratch;
  EXPECT_THAT(Extract(Plan("sum", {feature}), 0),
              ElementsAre(Id{1, 0, 0, 1.0f}));
  const auto extracted = ExtractIds(Plan("sum", {feature}), 1, scratch);
  ASSERT_FALSE(extracted);
  EXPECT_THAT(extracted.error().message, HasSubstr("id 2147483649"));
}

TEST(ExtractIdsTest, AFeatureWithoutWeightsHasWeightsOfOne) {
  const std::vector<int32_t> ids = {1, 2, 3, 1, 2, 3};
  const std::vector<float> weights = {1, 2, 1, 1, 1, 1};
  FeatureInput a = {.name = "a", .vocabulary_size = 10};
  a.batch = {.ids = std::span<const int32_t>(ids),
             .weights = std::span<const float>(weights),
             .num_samples = 2,
             .valency = 3};
  FeatureInput b = {.name = "b", .vocabulary_size = 10};
  b.transform.row_offset = 2;
  b.batch = {
      .ids = std::span<const int32_t>(ids), .num_samples = 2, .valency = 3};
  const float third = 1.0f / 3.0f;
  EXPECT_THAT(
      Extract(Plan("mean", {a, b}), 0),
      ElementsAre(Id{1, 0, 0, 0.25f}, Id{0, 1, 0, 0.5f}, Id{1, 1, 0, 0.25f},
                  Id{1, 0, 1, third}, Id{0, 1, 1, third}, Id{1, 1, 1, third}));
}

// With one valency in all features, samples follow from positions; but not if
// sample ids have gaps, as between features that are not neighbours.
TEST(ExtractIdsTest, WeightsOfSeveralFeaturesStayWithTheirIds) {
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<float> weights = {1, 2, 3, 4};
  const std::vector<float> others = {5, 6, 7, 8};
  FeatureInput a = {.name = "a", .vocabulary_size = 10};
  a.batch = {.ids = std::span<const int32_t>(ids),
             .weights = std::span<const float>(weights),
             .num_samples = 4,
             .valency = 1};
  FeatureInput b = a;
  b.name = "b";
  b.batch.weights = others;
  for (int32_t gap : {0, 3}) {
    b.transform.row_offset = 4 + 2 * gap;
    EXPECT_THAT(Extract(Plan("sum", {a, b}), 1),
                ElementsAre(Id{0, 1, 0, 3.0f}, Id{1, 1, 1, 4.0f},
                            Id{0, 1, 2 + gap, 7.0f}, Id{1, 1, 3 + gap, 8.0f}))
        << gap;
  }
}

TEST(ExtractIdsTest, WeightsFollowTheIdsThatAreNotDropped) {
  const std::vector<int32_t> ids = {1, 2, -1, 3, 4, 5};
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  FeatureInput feature = {.name = "f", .vocabulary_size = 10};
  feature.out_of_range_ids = IdPolicy::kDrop;
  feature.batch = {.ids = std::span<const int32_t>(ids),
                   .weights = std::span<const float>(weights),
                   .num_samples = 3,
                   .valency = 2};
  EXPECT_THAT(
      Extract(Plan("sum", {feature}, {.num_sc_per_device = 1}), 0),
      ElementsAre(Id{0, 1, 0, 1.0f}, Id{0, 2, 0, 2.0f}, Id{0, 3, 1, 4.0f},
                  Id{0, 4, 2, 5.0f}, Id{0, 5, 2, 6.0f}));
}

// SparseCore 0 gets both samples of "a" and the first of "b".
TEST(ExtractIdsTest, TakesPartsOfSeveralFeaturesIfTheyAreStackedFirst) {
  const std::vector<int32_t> ids = {0, 2, 4, 6};
  FeatureInput a = {.name = "a", .vocabulary_size = 10};
  a.batch = {.ids = std::span<const int32_t>(ids).first(2),
             .num_samples = 2,
             .valency = 1};
  FeatureInput b = {.name = "b", .vocabulary_size = 10};
  b.transform.row_offset = 2;
  b.batch = {
      .ids = std::span<const int32_t>(ids), .num_samples = 4, .valency = 1};
  auto plan = PlanStack({.name = "s",
                         .combiner = "sum",
                         .max_ids_per_partition = 8,
                         .max_unique_ids_per_partition = 8},
                        128, {a, b}, {.num_sc_per_device = 2},
                        FeatureStackingStrategy::kStackThenSplit);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(
      Extract(*plan, 0),
      ElementsAre(Id{0, 0, 0, 1.0f}, Id{0, 1, 1, 1.0f}, Id{0, 0, 2, 1.0f}));
  EXPECT_THAT(
      Extract(*plan, 1),
      ElementsAre(Id{0, 1, 0, 1.0f}, Id{0, 2, 1, 1.0f}, Id{0, 3, 2, 1.0f}));
}

// The combiner counts the ids that are left, and later features are in place.
TEST(ExtractIdsTest, DropsIdsBeforeTheCombinerCountsThem) {
  const std::vector<int32_t> ids = {-1, 4, 10, -1, 2, 6, 0, 0};
  FeatureInput a = {.name = "a", .vocabulary_size = 10};
  a.out_of_range_ids = IdPolicy::kDrop;
  a.batch = {
      .ids = std::span<const int32_t>(ids), .num_samples = 2, .valency = 4};
  FeatureInput b = {.name = "b", .vocabulary_size = 10};
  b.transform.row_offset = 2;
  b.batch = {.ids = std::span<const int32_t>(ids).subspan(4, 2),
             .num_samples = 2,
             .valency = 1};
  const StackPlan plan = Plan("mean", {a, b});
  EXPECT_THAT(Extract(plan, 0),
              ElementsAre(Id{0, 2, 0, 1.0f}, Id{0, 1, 1, 1.0f}));
  Scratch scratch;
  EXPECT_EQ(ExtractIds(plan, 0, scratch)->dropped_id_count, 3);
  EXPECT_EQ(ExtractIds(plan, 1, scratch)->dropped_id_count, 0);
}

// Sample and position need 17 bits each where 2^16 samples have one id each,
// and 17 and 14 bits where few of them have any.
TEST(ExtractIdsTest, PacksSamplesWithPositionsIfTheyFit) {
  constexpr int64_t kNumSamples = int64_t{1} << 16;
  for (const int64_t num_ids : {int64_t{1} << 13, kNumSamples}) {
    std::vector<int32_t> ids(num_ids);
    std::vector<float> weights(num_ids);
    std::vector<int64_t> splits(kNumSamples + 1);
    for (int64_t i = 0; i < num_ids; ++i) {
      ids[i] = static_cast<int32_t>(i % 7);
      weights[i] = static_cast<float>(i % 5 + 1);
    }
    for (int64_t r = 0; r <= kNumSamples; ++r) {
      splits[r] = std::min(r, num_ids);
    }
    FeatureInput feature = Ragged(ids, splits);
    feature.batch.weights = weights;
    const StackPlan plan = Plan("sum", {feature}, Topology());
    Scratch scratch;
    const auto extracted = ExtractIds(plan, 0, scratch);
    ASSERT_TRUE(extracted);
    EXPECT_EQ(std::holds_alternative<PackedGains>(extracted->gains),
              num_ids < kNumSamples);
    EXPECT_EQ(std::holds_alternative<IdGains>(extracted->gains),
              num_ids == kNumSamples);
    const std::vector<Id> actual = Extract(plan, 0);
    ASSERT_EQ(std::ssize(actual), num_ids);
    for (int64_t i = 0; i < num_ids; ++i) {
      ASSERT_EQ(actual[i], (Id{0, static_cast<uint32_t>(ids[i]),
                               static_cast<int32_t>(i), weights[i]}));
    }
  }
}

// Finite weights, whose sum is not.
TEST(ExtractIdsTest, WeightsWhoseSumOverflowsAreAnErrorWhereSuchWeightsAre) {
  const std::vector<int32_t> ids = {3, 1, 2};
  const std::vector<float> weights = {2.0f, 3e38f, 3e38f};
  const std::vector<int64_t> splits = {0, 1, 3};
  FeatureInput feature = Ragged(ids, splits);
  feature.batch.weights = weights;
  Scratch scratch;
  const auto refused =
      ExtractIds(Plan("mean", {feature}, Topology()), 0, scratch);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("Feature 'f': sample 1 has weights whose sum is more"));
  EXPECT_TRUE(ExtractIds(Plan("sum", {feature}, Topology()), 0, scratch));
  for (const WeightPolicy policy :
       {WeightPolicy::kDrop, WeightPolicy::kClamp, WeightPolicy::kKeep}) {
    feature.non_finite_weights = policy;
    EXPECT_THAT(
        Extract(Plan("mean", {feature}, Topology()), 0),
        ElementsAre(Id{0, 3, 0, 1.0f}, Id{0, 1, 1, 0.0f}, Id{0, 2, 1, 0.0f}));
  }
}

// Sums, and what is divided, are checked in different ways.
TEST(ExtractIdsTest, NamesAWeightThatIsNotFinite) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<int64_t> splits = {0, 2, 4};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float weight : {kInfinity, -kInfinity, kNan, -kNan}) {
    for (const char* combiner : {"sum", "mean"}) {
      for (const bool is_ragged : {false, true}) {
        const std::vector<float> weights = {
            1, 1, std::numeric_limits<float>::max(), weight};
        FeatureInput feature = {.name = "f", .vocabulary_size = 10};
        feature.batch = {.ids = std::span<const int32_t>(ids),
                         .weights = std::span<const float>(weights),
                         .num_samples = 2,
                         .valency = 2};
        if (is_ragged) feature.batch.row_splits = splits;
        Scratch scratch;
        const auto extracted =
            ExtractIds(Plan(combiner, {feature}), 1, scratch);
        ASSERT_FALSE(extracted);
        EXPECT_THAT(extracted.error().message,
                    HasSubstr("Feature 'f': sample 1 has weight "));
        EXPECT_THAT(extracted.error().message, HasSubstr("at position 1"));
        feature.non_finite_weights = WeightPolicy::kKeep;
        EXPECT_TRUE(ExtractIds(Plan(combiner, {feature}), 1, scratch));
      }
    }
  }
}

}  // namespace
}  // namespace jte::convert
