// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte::convert {
namespace {

using ::testing::HasSubstr;

constexpr Topology kTwoDevices = {
    .local_device_count = 2, .global_device_count = 2, .num_sc_per_device = 4};

StackSpec Spec(int64_t max_ids, std::optional<int64_t> suggestion) {
  return {.name = "items",
          .combiner = "sum",
          .max_ids_per_partition = max_ids,
          .max_unique_ids_per_partition = 8,
          .suggested_coo_buffer_size_per_device = suggestion};
}

TEST(CheckTopologyTest, AcceptsAnyPositiveCounts) {
  EXPECT_TRUE(CheckTopology(kTwoDevices));
  EXPECT_TRUE(CheckTopology({.local_device_count = 1,
                             .global_device_count = 7,
                             .num_sc_per_device = 3}));
}

TEST(CheckTopologyTest, NamesTheCountThatIsWrong) {
  struct Case {
    Topology topology;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{0, 1, 1}, "local_device_count must be greater than 0"},
      {{1, 0, 1}, "global_device_count must be greater than 0"},
      {{1, 1, -1}, "num_sc_per_device must be greater than 0"},
      {{2, 1, 1}, "global_device_count must be greater than or equal to"},
      {{1, 1 << 20, 8}, "more than 16777216 partitions"},
  };
  for (const Case& c : cases) {
    const auto checked = CheckTopology(c.topology);
    ASSERT_FALSE(checked) << c.message;
    EXPECT_THAT(checked.error().message, HasSubstr(c.message));
  }
}

TEST(CooCellsPerDeviceTest, TakesTheRoundedSuggestionOrTheTheoreticalMost) {
  // up8(10) * 4 SparseCores * 8 partitions.
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, std::nullopt), kTwoDevices, false),
            512);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 1), kTwoDevices, false), 32);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 33), kTwoDevices, false), 64);
  EXPECT_EQ(*CooCellsPerDevice(Spec(8, 256), kTwoDevices, false), 256);
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, std::nullopt), kTwoDevices, true),
            512 * 64);
  EXPECT_EQ(*CooCellsPerDevice(Spec(10, 100), kTwoDevices, true), 128);
}

TEST(CooCellsPerDeviceTest, RefusesWhatCannotBe) {
  StackSpec no_unique_ids = Spec(8, std::nullopt);
  no_unique_ids.max_unique_ids_per_partition = 0;
  struct Case {
    StackSpec spec;
    std::string message;
  };
  const std::vector<Case> cases = {
      {Spec(8, 257),
       "Stack 'items': suggested_coo_buffer_size_per_device=257, "
       "rounded up to 288 (a multiple of 8 * num_sc_per_device), "
       "is above 256"},
      {Spec(8, 0),
       "suggested_coo_buffer_size_per_device must be in [1, "
       "2147483647], got 0."},
      {Spec(0, std::nullopt), "max_ids_per_partition must be in [1, "},
      {no_unique_ids, "max_unique_ids_per_partition must be in [1, "},
      {Spec(int64_t{1} << 31, std::nullopt), "got 2147483648."},
      {Spec((1 << 27) - 1, std::nullopt),
       "would have 4294967296 cells, and must have fewer than 2147483647"},
  };
  for (const Case& c : cases) {
    const auto cells = CooCellsPerDevice(c.spec, kTwoDevices, false);
    ASSERT_FALSE(cells) << c.message;
    EXPECT_THAT(cells.error().message, HasSubstr(c.message));
  }
}

using ::testing::ElementsAre;

constexpr Topology kTopology = {
    .local_device_count = 2, .global_device_count = 4, .num_sc_per_device = 2};
constexpr int32_t kIds[16] = {};
constexpr float kWeights[16] = {};
constexpr int64_t kSplits[9] = {0, 1, 2, 3, 4, 5, 6, 7, 16};
constexpr int64_t kSplitsFromOne[9] = {1, 1, 2, 3, 4, 5, 6, 7, 16};
constexpr int64_t kSplitsOfTooFewIds[9] = {0, 1, 2, 3, 4, 5, 6, 7, 15};
constexpr int64_t kSplitsThatDescend[9] = {0, 1, 2, 4, 3, 5, 6, 7, 16};

// What PlanStack gets: two features of 8 local samples on 4 local SparseCores.
struct Request {
  StackSpec spec = {.name = "items",
                    .combiner = "mean",
                    .max_ids_per_partition = 16,
                    .max_unique_ids_per_partition = 16};
  int64_t coo_cells_per_device = 2 * 8 * 16;
  std::vector<FeatureInput> features;
  Topology topology = kTopology;
  FeatureStackingStrategy strategy = FeatureStackingStrategy::kSplitThenStack;

  Request() {
    // Global batches of 16, so the second feature starts at 16.
    features.push_back({.name = "late", .vocabulary_size = 100});
    features.back().transform = {
        .row_offset = 16, .col_offset = 8 * 13, .col_shift = 11};
    features.push_back({.name = "early", .vocabulary_size = 50});
    for (FeatureInput& feature : features) {
      feature.batch = {.ids = std::span<const int32_t>(kIds),
                       .num_samples = 8,
                       .valency = 2};
    }
  }

  Result<StackPlan> Plan() const {
    return PlanStack(spec, coo_cells_per_device, features, topology, strategy);
  }
};

TEST(PlanStackTest, OrdersFeaturesAndTakesTheirTransformsApart) {
  const auto plan = Request().Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->combiner, Combiner::kMean);
  EXPECT_FALSE(plan->has_weights);
  EXPECT_EQ(plan->coo_cells_per_sc(), 128);
  EXPECT_EQ(plan->num_ids(), 32);
  // 2 samples of each feature per SparseCore.
  EXPECT_EQ(plan->num_sample_ids, 4);
  ASSERT_EQ(plan->features.size(), 2);
  const FeaturePlan& early = plan->features[0];
  EXPECT_EQ(early.input.name, "early");
  EXPECT_EQ(early.samples_per_device, 4);
  const FeaturePlan& late = plan->features[1];
  EXPECT_EQ(late.input.name, "late");
  EXPECT_EQ(late.rotation, 11 % 8);
  EXPECT_EQ(late.first_row, 13);
  // Row 99 / 8 + 13 = 25 takes 5 bits, 8 partitions 3.
  EXPECT_EQ(plan->sort_key.num_bits(), 8);
}

// first, size and first sample id of a feature on each local SparseCore.
std::vector<std::array<int64_t, 3>> Ranges(const StackPlan& plan,
                                           const FeaturePlan& feature) {
  std::vector<std::array<int64_t, 3>> ranges;
  for (int64_t sc = 0; sc < 4; ++sc) {
    const SampleRange range = plan.SamplesOf(feature, sc);
    ranges.push_back({range.first, range.size, range.first_sample_id});
  }
  return ranges;
}

using Range = std::array<int64_t, 3>;

TEST(PlanStackTest, SplitsEachFeatureAmongTheSparseCores) {
  const auto plan = Request().Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(Ranges(*plan, plan->features[0]),
              ElementsAre(Range{0, 2, 0}, Range{2, 2, 0}, Range{4, 2, 0},
                          Range{6, 2, 0}));
  EXPECT_THAT(Ranges(*plan, plan->features[1]),
              ElementsAre(Range{0, 2, 2}, Range{2, 2, 2}, Range{4, 2, 2},
                          Range{6, 2, 2}));
}

TEST(PlanStackTest, CutsStackedFeaturesIntoEqualParts) {
  Request request;
  request.strategy = FeatureStackingStrategy::kStackThenSplit;
  // 3 + 1 samples per device for "early" and "late", 2 per SparseCore: "early"
  // has all of the first and half of the second.
  request.features[1].batch.num_samples = 6;
  request.features[1].batch.ids = std::span(kIds).first(12);
  request.features[0].transform.row_offset = 3 * 4;
  request.features[0].batch.num_samples = 2;
  request.features[0].batch.ids = std::span(kIds).first(4);
  const auto plan = request.Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_sample_ids, 2);
  EXPECT_THAT(Ranges(*plan, plan->features[0]),
              ElementsAre(Range{0, 2, 0}, Range{2, 1, 0}, Range{3, 2, 0},
                          Range{5, 1, 0}));
  const auto late = Ranges(*plan, plan->features[1]);
  EXPECT_EQ(late[0][1], 0);
  EXPECT_EQ(late[1], (Range{0, 1, 1}));
  EXPECT_EQ(late[2][1], 0);
  EXPECT_EQ(late[3], (Range{1, 1, 1}));
}

TEST(PlanStackTest, AFeatureMayBeTheOnlyOneWithWeights) {
  Request request;
  request.features[0].batch.weights = std::span(kWeights);
  const auto plan = request.Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->has_weights);
}

TEST(PlanStackTest, AcceptsCountsThatAreNoPowersOfTwo) {
  Request request;
  request.topology = {.local_device_count = 2,
                      .global_device_count = 3,
                      .num_sc_per_device = 2};
  request.features[0].transform.row_offset = 12;
  request.features[0].transform.col_offset = 6 * 13;
  EXPECT_TRUE(request.Plan());
}

TEST(PlanStackTest, AcceptsRaggedIds) {
  Request request;
  request.features[0].batch.row_splits = kSplits;
  EXPECT_TRUE(request.Plan());
}

TEST(PlanStackTest, AcceptsABatchWithoutSamples) {
  Request request;
  for (FeatureInput& feature : request.features) {
    feature.batch = {.ids = std::span<const int64_t>()};
  }
  EXPECT_TRUE(request.Plan());
}

TEST(PlanStackTest, AFeatureWithoutSamplesOverlapsNothing) {
  Request request;
  // On the samples of "early", before and after it in order.
  for (int64_t row_offset : {0, 8}) {
    request.features.push_back({.name = "empty", .vocabulary_size = 10});
    request.features.back().transform.row_offset = row_offset;
  }
  request.features[0].transform.row_offset = 16;
  const auto plan = request.Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_sample_ids, 4);
}

TEST(PlanStackTest, CountsTheSamplesOfAFeatureBeforeAnEmptyOne) {
  Request request;
  request.features[0].transform.row_offset = 0;
  request.features[0].batch = {.ids = std::span<const int32_t>()};
  std::swap(request.features[0], request.features[1]);
  const auto plan = request.Plan();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_sample_ids, 2);
}

struct Refusal {
  std::string what;
  std::function<void(Request&)> change;
  std::string message;
};

class PlanStackRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(PlanStackRefusalTest, NamesTheObjectAndTheRemedy) {
  Request request;
  GetParam().change(request);
  const auto plan = request.Plan();
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(plan.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanStackRefusalTest,
    testing::ValuesIn(std::vector<Refusal>{
        {"Combiner", [](Request& r) { r.spec.combiner = "max"; },
         "Stack 'items': unknown combiner 'max'; choose 'sum', 'mean' or "
         "'sqrtn'."},
        {"BufferOfUnevenRegions",
         [](Request& r) { r.coo_cells_per_device = 24; },
         "a COO buffer of 24 cells is not a positive multiple of 8 cells for "
         "each of the 2 SparseCores"},
        {"BatchNotDivisible",
         [](Request& r) { r.features[0].batch.num_samples = 6; },
         "Feature 'late': has 6 samples, which local_device_count * "
         "num_sc_per_device = 2 * 2 SparseCores cannot share evenly. Pad or "
         "cut the batch to a multiple of 4."},
        {"WeightsOfAnotherSize",
         [](Request& r) {
           r.features[0].batch.weights = std::span(kWeights).first(3);
           r.features[1].batch.weights = std::span(kWeights);
         },
         "Feature 'late': has 16 ids and 3 weights."},
        {"DenseSizes", [](Request& r) { r.features[0].batch.valency = 3; },
         "Feature 'late': 8 samples of 3 ids cannot have 16 ids."},
        {"EnormousSamples",
         [](Request& r) {
           r.features[0].batch = {.ids = std::span<const int32_t>(),
                                  .weights = std::span<const float>(),
                                  .valency = int64_t{1} << 32};
         },
         "Feature 'late': its samples have 4294967296 ids each, and a sample "
         "can have at most 2147483647. Pass ids of shape [samples, valency]."},
        {"TooFewRowSplits",
         [](Request& r) {
           r.features[0].batch.row_splits = std::span(kSplits).first(8);
         },
         "Feature 'late': row_splits must be 9 numbers that ascend from 0 to "
         "the number of ids, 16."},
        {"RowSplitsFromOne",
         [](Request& r) { r.features[0].batch.row_splits = kSplitsFromOne; },
         "Feature 'late': row_splits must be 9 numbers that ascend from 0 to "
         "the number of ids, 16."},
        {"RowSplitsOfTooFewIds",
         [](Request& r) {
           r.features[0].batch.row_splits = kSplitsOfTooFewIds;
         },
         "Feature 'late': row_splits must be 9 numbers that ascend from 0 to "
         "the number of ids, 16."},
        {"RowSplitsThatDescend",
         [](Request& r) {
           r.features[0].batch.row_splits = kSplitsThatDescend;
         },
         "Feature 'late': row_splits must be 9 numbers that ascend from 0 to "
         "the number of ids, 16."},
        {"EmptyVocabulary",
         [](Request& r) { r.features[0].vocabulary_size = 0; },
         "Feature 'late': the vocabulary_size of its table must be in [1, "
         "2147483647], got 0."},
        {"OffsetBetweenRows",
         [](Request& r) { r.features[0].transform.col_offset = 9; },
         "col_offset must be a multiple of the 8 SparseCores, got 16, 11 and "
         "9."},
        {"NegativeShift",
         [](Request& r) { r.features[0].transform.col_shift = -1; },
         "must not be negative"},
        {"ColumnsBeyondInt32",
         [](Request& r) {
           r.features[0].transform.col_offset = (int64_t{1} << 31) - 8 - 96;
         },
         "Feature 'late': vocabulary_size=100 at col_offset=2147483544 on 8 "
         "SparseCores needs stack rows beyond int32."},
        {"OverlappingFeatures",
         [](Request& r) { r.features[0].transform.row_offset = 8; },
         "Stack 'items': feature 'early' at row_offset=0 has 2 samples per "
         "SparseCore and overlaps feature 'late' at row_offset=8. Pass batches "
         "of the sizes that the features declare. Those that declare another "
         "batch than they were stacked for are best left as they were: they "
         "take any."},
        {"BatchNotDivisibleByDevices",
         [](Request& r) {
           r.strategy = FeatureStackingStrategy::kStackThenSplit;
           r.features[1].batch.num_samples = 7;
         },
         "Feature 'early': has 7 samples, which local_device_count = 2 devices "
         "cannot share evenly. Pad or cut the batch to a multiple of 2."},
        {"StackNotDivisibleBySparseCores",
         [](Request& r) {
           r.strategy = FeatureStackingStrategy::kStackThenSplit;
           r.features[0].batch.num_samples = 2;
           r.features[0].batch.ids = std::span(kIds).first(4);
         },
         "Stack 'items': its features have 5 samples per device, which "
         "num_sc_per_device = 2 SparseCores cannot share evenly."},
        {"GapBetweenStackedFeatures",
         [](Request& r) {
           r.strategy = FeatureStackingStrategy::kStackThenSplit;
           r.features[0].transform.row_offset = 20;
         },
         "Stack 'items': feature 'late' is at row_offset=20, and the features "
         "before it have 16 samples on all devices. With STACK_THEN_SPLIT, "
         "pass all features of a stack"},
        {"EnormousStack",
         [](Request& r) {
           r.strategy = FeatureStackingStrategy::kStackThenSplit;
           r.topology.global_device_count = 1 << 24;
           for (FeatureInput& feature : r.features) {
             feature.batch = {.ids = std::span<const int32_t>(),
                              .num_samples = int64_t{1} << 48};
           }
           r.features[0].transform = {.row_offset = 1};
         },
         "Stack 'items': 281474976710656 samples per device exceeds the "
         "maximum"},
        {"TooManySamples",
         [](Request& r) {
           r.features[0].transform.row_offset = int64_t{8} << 26;
         },
         "Stack 'items': 67108866 samples per device exceeds the maximum limit "
         "supported by the SparseCore CooFormat, 67108863."},
    }),
    [](const testing::TestParamInfo<Refusal>& info) {
      return info.param.what;
    });

}  // namespace
}  // namespace jte::convert
