// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The buffers of a stack on all local devices.
struct Buffers {
  explicit Buffers(const StackPlan& plan)
      : row_pointers(plan.topology.local_device_count *
                     RowPointersPerDevice(plan.topology, false)),
        embedding_ids(plan.topology.local_device_count *
                      plan.coo_cells_per_device),
        sample_ids(embedding_ids.size()),
        gains(embedding_ids.size()) {}

  CsrBuffers view() { return {row_pointers, embedding_ids, sample_ids, gains}; }

  bool operator==(const Buffers& other) const {
    // Bits, since NaN is not equal to itself.
    return row_pointers == other.row_pointers &&
           embedding_ids == other.embedding_ids &&
           sample_ids == other.sample_ids &&
           std::memcmp(gains.data(), other.gains.data(),
                       gains.size() * sizeof(float)) == 0;
  }

  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
};

struct Converted {
  std::vector<Buffers> buffers;
  std::vector<StackStats> stats;
};

Result<Converted> PlanAndConvert(const std::vector<StackedFeature>& features,
                                 const ConvertOptions& options,
                                 Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto stacks, PlanConversion(features, options));
  Converted converted;
  std::vector<CsrBuffers> views;
  converted.buffers.reserve(stacks.size());
  for (const StackPlan& plan : stacks) {
    views.push_back(converted.buffers.emplace_back(plan).view());
  }
  JTE_ASSIGN_OR_RETURN(auto conversion,
                       Convert(stacks, options, views, executor, nullptr));
  converted.stats = std::move(conversion.stats);
  return converted;
}

Result<Converted> PlanAndConvert(const std::vector<StackedFeature>& features,
                                 const ConvertOptions& options) {
  InlineExecutor executor;
  return PlanAndConvert(features, options, executor);
}

constexpr ConvertOptions kTwoScs = {.topology = {.num_sc_per_device = 2}};

StackedFeature Dense(const std::string& name, std::span<const int32_t> ids,
                     int64_t num_samples, int64_t limit = 8) {
  return {.feature = {.name = name,
                      .vocabulary_size = 1000,
                      .batch = {.ids = ids,
                                .num_samples = num_samples,
                                .valency = std::ssize(ids) / num_samples}},
          .stack = {.name = name + "_stack",
                    .combiner = "sum",
                    .max_ids_per_partition = limit,
                    .max_unique_ids_per_partition = limit}};
}

// Four samples of ten ids 0 .. 39 on two SparseCores: five ids of each sample
// go to each partition.
const std::vector<int32_t>& Forty() {
  static const auto& ids = *new std::vector<int32_t>([] {
    std::vector<int32_t> ids(40);
    for (int i = 0; i < 40; ++i) ids[i] = i;
    return ids;
  }());
  return ids;
}

TEST(ConverterTest, ConvertsTheWorkedExample) {
  const std::vector<int32_t> ids = {0, 0, 3, 5, 2, 1};
  const std::vector<int64_t> splits = {0, 3, 5, 5, 6};
  StackedFeature feature = Dense("f", ids, 1);
  feature.feature.batch = {.ids = std::span<const int32_t>(ids),
                           .num_samples = 4,
                           .row_splits = splits};
  feature.stack.combiner = "mean";
  const auto converted = PlanAndConvert({feature}, kTwoScs);
  ASSERT_TRUE(converted) << converted.error().message;
  const Buffers& buffers = converted->buffers[0];
  EXPECT_THAT(buffers.row_pointers, ElementsAre(2, 10, 16, 16, 16, 16, 16, 16,
                                                0, 1, 8, 8, 8, 8, 8, 8));
  ASSERT_EQ(buffers.gains.size(), 32);
  EXPECT_EQ(buffers.gains[0], 2.0f / 3.0f);
  EXPECT_EQ(buffers.gains[16], 1.0f);
  const StackStats& stats = converted->stats[0];
  EXPECT_THAT(stats.max_ids_per_partition, ElementsAre(2, 2));
  EXPECT_THAT(stats.max_unique_ids_per_partition, ElementsAre(2, 2));
  EXPECT_THAT(stats.required_buffer_size_per_sc, ElementsAre(16, 8));
  EXPECT_EQ(stats.dropped_id_count, 0);
}

TEST(ConverterTest, StatsAreTheLargestOfTheSparseCoresOfADevice) {
  // Devices 0 and 1 of 2, one SparseCore each; N = 2.
  const std::vector<int32_t> ids = {0, 2, 4, 1, 3, 5};
  const auto converted =
      PlanAndConvert({Dense("f", ids, 2)}, {.topology = {2, 2, 1}});
  ASSERT_TRUE(converted);
  EXPECT_THAT(converted->stats[0].max_ids_per_partition,
              ElementsAre(3, 0, 0, 3));
  EXPECT_THAT(converted->stats[0].required_buffer_size_per_sc,
              ElementsAre(8, 8));
}

TEST(ConverterTest, KeepsStacksApart) {
  const std::vector<int32_t> a = {0, 2}, b = {5, 7};
  const auto converted =
      PlanAndConvert({Dense("a", a, 2), Dense("b", b, 2)}, kTwoScs);
  ASSERT_TRUE(converted);
  ASSERT_EQ(converted->buffers.size(), 2);
  EXPECT_EQ(converted->buffers[0].embedding_ids[0], 0);
  // Partition 1, row 2.
  EXPECT_EQ(converted->buffers[1].embedding_ids[0], 2);
}

TEST(ConverterTest, TheFeatureOfTheSmallestRowOffsetSpeaksForItsStack) {
  const std::vector<int32_t> ids = {0, 2};
  StackedFeature late = Dense("late", ids, 2, 8);
  StackedFeature early = Dense("early", ids, 2, 24);
  late.stack.name = early.stack.name = "both";
  late.feature.transform.row_offset = 2;
  const auto stacks = PlanConversion({late, early}, kTwoScs);
  ASSERT_TRUE(stacks) << stacks.error().message;
  ASSERT_EQ(stacks->size(), 1);
  EXPECT_EQ(stacks->front().spec.max_ids_per_partition, 24);
  EXPECT_EQ(stacks->front().coo_cells_per_device, 24 * 2 * 2);
}

TEST(ConverterTest, DropsOnlyWhenAllowed) {
  const StackedFeature feature = Dense("f", Forty(), 4, 4);
  const auto refused = PlanAndConvert({feature}, kTwoScs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "Stack 'f_stack': SparseCore 0 of local device 0 has 10 ids for "
            "partition 0, and max_ids_per_partition is 4. Raise it to at least "
            "10, or pass allow_id_dropping=True to drop what is beyond it.\n"
            "Stack 'f_stack': SparseCore 0 of local device 0 has 10 distinct "
            "ids for partition 0, and max_unique_ids_per_partition is 4. Raise "
            "it to at least 10, or pass allow_id_dropping=True to drop what is "
            "beyond it.");

  ConvertOptions options = kTwoScs;
  options.allow_id_dropping = true;
  const auto converted = PlanAndConvert({feature}, options);
  ASSERT_TRUE(converted);
  EXPECT_EQ(converted->stats[0].dropped_id_count, 40 - 4 * 4);
  EXPECT_THAT(converted->stats[0].max_ids_per_partition, ElementsAre(10, 10));
}

TEST(ConverterTest, NamesTheSparseCoreWhoseBufferIsTooSmall) {
  StackedFeature feature = Dense("f", Forty(), 4, 16);
  feature.stack.suggested_coo_buffer_size_per_device = 32;
  const auto refused = PlanAndConvert({feature}, kTwoScs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "Stack 'f_stack': SparseCore 0 of local device 0 needs 32 cells "
            "and has 16, its share of a buffer of 32 cells. Raise "
            "suggested_coo_buffer_size_per_device to at least 64, or pass "
            "allow_id_dropping=True to drop what is beyond it.");

  ConvertOptions options = kTwoScs;
  options.allow_id_dropping = true;
  const auto converted = PlanAndConvert({feature}, options);
  ASSERT_TRUE(converted);
  EXPECT_EQ(converted->stats[0].dropped_id_count, 20);
}

TEST(ConverterTest, NamesABufferThatIsTooSmallWithoutALimit) {
  // XLA handlers plan this way: the buffer has a size, and there is no limit.
  const StackedFeature feature = Dense("f", Forty(), 4, 100);
  const auto plan =
      PlanStack(feature.stack, 32, {feature.feature}, kTwoScs.topology);
  ASSERT_TRUE(plan) << plan.error().message;
  Buffers buffers(*plan);
  const CsrBuffers view = buffers.view();
  InlineExecutor executor;
  const auto refused =
      Convert({&*plan, 1}, kTwoScs, {&view, 1}, executor, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("needs 32 cells and has 16"));
}

TEST(ConverterTest, TheNumberInTheErrorSuffices) {
  StackedFeature feature = Dense("f", Forty(), 4, 10);
  feature.stack.suggested_coo_buffer_size_per_device = 64;
  EXPECT_TRUE(PlanAndConvert({feature}, kTwoScs));
}

TEST(ConverterTest, RefusesBeforeItReads) {
  const auto no_features = PlanConversion({}, kTwoScs);
  ASSERT_FALSE(no_features);
  EXPECT_THAT(no_features.error().message,
              HasSubstr("input_batches cannot be empty"));

  const auto no_devices =
      PlanConversion({Dense("f", Forty(), 4)}, {.topology = {0, 1, 1}});
  ASSERT_FALSE(no_devices);
  EXPECT_THAT(no_devices.error().message, HasSubstr("local_device_count"));
}

TEST(ConverterTest, ReportsTheFirstIdOutOfRangeForAnyNumberOfThreads) {
  std::vector<int32_t> ids = Forty();
  ids[25] = 1000;
  ids[39] = -1;
  for (int num_threads : {1, 2, 8}) {
    ThreadExecutor executor(num_threads);
    const auto refused =
        PlanAndConvert({Dense("f", ids, 20)}, kTwoScs, executor);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message,
                HasSubstr("Feature 'f': sample 12 has id 1000 at position 1"));
  }
}

TEST(ConverterTest, BytesDoNotDependOnThreadsOrOnTheOrderOfFeatures) {
  std::mt19937 random(3);
  const Topology topology = {2, 3, 3};
  const int64_t num_scs = topology.num_scs();
  const int64_t num_samples = topology.local_device_count * 3 * 20;
  std::vector<std::vector<int32_t>> ids(6);
  std::vector<std::vector<float>> weights(6);
  std::vector<StackedFeature> features;
  for (int f = 0; f < 6; ++f) {
    for (int i = 0; i < num_samples * (f + 1); ++i) {
      ids[f].push_back(random() % 200);
      weights[f].push_back(static_cast<float>(random() % 1000) - 300.0f);
    }
    StackedFeature feature =
        Dense("f" + std::to_string(f), ids[f], num_samples, 400);
    feature.feature.batch.weights = weights[f];
    feature.feature.transform = {.row_offset = f / 2 * num_scs * 20,
                                 .col_offset = f * 30 * num_scs,
                                 .col_shift = f};
    feature.stack.name = f % 2 == 0 ? "even" : "odd";
    feature.stack.combiner = "sqrtn";
    features.push_back(feature);
  }
  InlineExecutor inline_executor;
  const auto expected =
      PlanAndConvert(features, {.topology = topology}, inline_executor);
  ASSERT_TRUE(expected) << expected.error().message;

  for (int num_threads : {2, 3, 16}) {
    ThreadExecutor executor(num_threads);
    const auto actual =
        PlanAndConvert(features, {.topology = topology}, executor);
    ASSERT_TRUE(actual);
    EXPECT_TRUE(actual->buffers == expected->buffers) << num_threads;
    for (int stack : {0, 1}) {
      EXPECT_THAT(
          actual->stats[stack].max_ids_per_partition,
          ElementsAreArray(expected->stats[stack].max_ids_per_partition));
    }
  }

  std::swap(features[2], features[4]);  // both of the stack "even"
  const auto reordered =
      PlanAndConvert(features, {.topology = topology}, inline_executor);
  ASSERT_TRUE(reordered);
  EXPECT_TRUE(reordered->buffers == expected->buffers);
}

}  // namespace
}  // namespace jte::convert
