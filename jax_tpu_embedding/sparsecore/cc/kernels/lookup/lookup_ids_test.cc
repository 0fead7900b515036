// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"

namespace jte::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

convert::StackPlan Plan(std::string combiner,
                        std::vector<convert::FeatureInput> features,
                        const Topology& topology = {.local_device_count = 1,
                                                    .global_device_count = 1,
                                                    .num_sc_per_device = 1}) {
  auto plan = convert::PlanStack(
      {.name = "stack",
       .combiner = std::move(combiner),
       .max_ids_per_partition = std::numeric_limits<int32_t>::max(),
       .max_unique_ids_per_partition = std::numeric_limits<int32_t>::max()},
      /*coo_cells_per_device=*/int64_t{8} << 12, std::move(features), topology);
  EXPECT_TRUE(plan) << plan.error().message;
  return *plan;
}

Result<std::vector<float>> LookUp(
    const convert::StackPlan& plan, std::span<const LookupTable> tables,
    int64_t rows_per_shard, int64_t dim, int64_t num_samples,
    int num_threads = 1,
    std::optional<Quantization> quantization = std::nullopt) {
  std::vector<float> out(num_samples * dim, kNaN);
  ThreadExecutor executor(num_threads);
  JTE_RETURN_IF_ERROR(LookupIds(plan, tables, rows_per_shard, dim, quantization,
                                out, executor));
  return out;
}

// ---- By hand.

TEST(LookupIdsTest, PoolsTheRowsOfEachSample) {
  const std::vector<float> table = {1, 10, 2, 20, 3, 30};
  const LookupTable values = std::span(table);
  const std::vector<int32_t> ids = {2, 0, 1, 1};
  const convert::FeatureInput feature = {
      .name = "f",
      .vocabulary_size = 3,
      .batch = {.ids = std::span(ids), .num_samples = 2, .valency = 2}};
  const auto sums = LookUp(Plan("sum", {feature}), {&values, 1}, 3, 2, 2);
  EXPECT_EQ(*sums, (std::vector<float>{4, 40, 4, 40}));
  const auto means = LookUp(Plan("mean", {feature}), {&values, 1}, 3, 2, 2);
  EXPECT_EQ(*means, (std::vector<float>{2, 20, 2, 20}));
}

// 1e8 + 1 is 1e8 in float32, so the order of terms shows: rows ascend.
TEST(LookupIdsTest, AddsTermsInTheOrderOfRows) {
  const std::vector<float> table = {1e8f, -1e8f, 1};
  const LookupTable values = std::span(table);
  const std::vector<int32_t> ids = {2, 1, 0, 2, 0, 1};
  const convert::FeatureInput feature = {
      .name = "f",
      .vocabulary_size = 3,
      .batch = {.ids = std::span(ids), .num_samples = 2, .valency = 3}};
  EXPECT_EQ(*LookUp(Plan("sum", {feature}), {&values, 1}, 3, 1, 2),
            (std::vector<float>{1, 1}));
}

// The sum of the gains is (1e8 + 1) - 1e8 = 0 from left to right.
TEST(LookupIdsTest, AnIdThatRepeatsIsOneTermWithItsGainsFromLeftToRight) {
  const std::vector<float> table = {3};
  const LookupTable values = std::span(table);
  const std::vector<int32_t> ids = {0, 0, 0};
  const std::vector<float> weights = {1e8f, 1, -1e8f};
  const convert::FeatureInput feature = {.name = "f",
                                         .vocabulary_size = 1,
                                         .batch = {.ids = std::span(ids),
                                                   .weights = weights,
                                                   .num_samples = 1,
                                                   .valency = 3}};
  EXPECT_EQ(*LookUp(Plan("sum", {feature}), {&values, 1}, 1, 1, 1),
            std::vector<float>{0});
}

TEST(LookupIdsTest, SamplesWithoutIdsAndBetweenFeaturesAreZero) {
  const std::vector<float> table = {5};
  const LookupTable values = std::span(table);
  const std::vector<int32_t> ids = {0};
  const std::vector<int64_t> splits = {0, 0, 1};
  const convert::FeatureInput feature = {
      .name = "f",
      .vocabulary_size = 1,
      .transform = {.row_offset = 1},
      .batch = {.ids = std::span(ids), .num_samples = 2, .row_splits = splits}};
  EXPECT_EQ(*LookUp(Plan("sum", {feature}), {&values, 1}, 1, 1, 4),
            (std::vector<float>{0, 0, 5, 0}));
}

TEST(LookupIdsTest, RefusesWhatDoesNotBelongTogether) {
  const std::vector<float> table(8);
  const std::vector<LookupTable> tables(2, std::span(table));
  const std::vector<int32_t> ids = {0, 3};
  const convert::FeatureInput feature = {
      .name = "f",
      .vocabulary_size = 4,
      .batch = {.ids = std::span(ids), .num_samples = 2, .valency = 1}};
  const convert::StackPlan plan = Plan("sum", {feature});
  const auto error = [&plan, &tables](int64_t num_tables, int64_t rows,
                                      int64_t num_samples) {
    return LookUp(plan, std::span(tables).first(num_tables), rows, 2,
                  num_samples)
        .error()
        .message;
  };
  ASSERT_TRUE(LookUp(plan, std::span(tables).first(1), 4, 2, 2));
  EXPECT_EQ(error(1, 3, 2),
            "Feature 'f': its last id is row 3 of a shard, and shards of the "
            "table have 3 rows. Pass the table that its stack was planned "
            "for.");
  EXPECT_EQ(error(2, 4, 2),
            "The tables of 2 devices have 4 rows each, expected those of 1 and "
            "numbers of 32 bits.");
  EXPECT_EQ(error(1, 4, 1),
            "The activations have 1 rows, expected at least 2 for each of 1 "
            "SparseCores.");
}

// ---- Against the converter and the lookup from buffers: equal bits, or the
// same message.

struct RandomStack {
  Topology topology;
  std::string combiner;
  int64_t rows_per_shard = 0;
  int64_t samples_per_sc = 0;
  std::vector<convert::FeatureInput> features;
  std::deque<std::vector<int32_t>> int32s;
  std::deque<std::vector<uint64_t>> uint64s;
  std::deque<std::vector<float>> weights;
  std::deque<std::vector<int64_t>> splits;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool OneIn(int64_t n) { return Integer(1, n) == 1; }
  float Normal() { return std::normal_distribution<float>()(engine_); }

 private:
  std::mt19937_64 engine_;
};

float RandomWeight(Random& random) {
  if (random.OneIn(60)) return random.OneIn(2) ? kNaN : -kInfinity;
  if (random.OneIn(8)) return 0.0f;
  if (random.OneIn(8)) return 1e-40f;  // subnormal
  return random.Normal();
}

RandomStack MakeRandomStack(Random& random) {
  RandomStack stack;
  stack.topology = {.local_device_count = 1,
                    .global_device_count = int64_t{1} << random.Integer(0, 2),
                    .num_sc_per_device = random.Integer(1, 3)};
  const int64_t num_scs = stack.topology.num_scs();
  constexpr const char* kCombiners[] = {"sum", "mean", "sqrtn"};
  stack.combiner = kCombiners[random.Integer(0, 2)];
  const int64_t num_features = random.Integer(1, 3);
  for (int64_t f = 0; f < num_features; ++f) {
    const int64_t samples_per_sc = random.Integer(0, 40);
    const int64_t num_samples =
        samples_per_sc * stack.topology.num_sc_per_device;
    // Mostly few ids, so that a sample repeats some.
    convert::FeatureInput feature = {
        .name = "feature" + std::to_string(f),
        .vocabulary_size =
            random.OneIn(2) ? random.Integer(1, 12) : random.Integer(1, 400),
        .transform = {.row_offset = stack.samples_per_sc * num_scs,
                      .col_offset = stack.rows_per_shard * num_scs,
                      .col_shift = random.Integer(0, num_scs)},
        .out_of_range_ids =
            static_cast<convert::IdPolicy>(random.Integer(0, 3)),
        .non_finite_weights =
            static_cast<convert::WeightPolicy>(random.Integer(0, 3))};
    convert::InputBatch& batch = feature.batch;
    batch.num_samples = num_samples;
    int64_t num_ids = 0;
    // One in a few has samples that do not fit a network.
    const int64_t most = random.OneIn(6) ? 200 : random.OneIn(3) ? 33 : 5;
    if (random.OneIn(2)) {
      auto& splits = stack.splits.emplace_back(1, 0);
      for (int64_t s = 0; s < num_samples; ++s) {
        splits.push_back(num_ids += random.Integer(0, most));
      }
      batch.row_splits = splits;
    } else {
      batch.valency = random.Integer(0, most);
      num_ids = num_samples * batch.valency;
    }
    const bool may_be_wrong = random.OneIn(2);
    const auto next_id = [&random, &feature, may_be_wrong]() -> int64_t {
      if (may_be_wrong && random.OneIn(50)) {
        return random.OneIn(2) ? feature.vocabulary_size : -3;
      }
      return random.Integer(0, feature.vocabulary_size - 1);
    };
    if (random.OneIn(3)) {
      auto& ids = stack.uint64s.emplace_back(num_ids);
      for (uint64_t& id : ids) id = static_cast<uint64_t>(next_id());
      batch.ids = std::span<const uint64_t>(ids);
    } else {
      auto& ids = stack.int32s.emplace_back(num_ids);
      for (int32_t& id : ids) id = static_cast<int32_t>(next_id());
      batch.ids = std::span<const int32_t>(ids);
    }
    if (random.OneIn(2)) {
      auto& weights = stack.weights.emplace_back(num_ids);
      for (float& weight : weights) {
        weight = may_be_wrong ? RandomWeight(random) : random.Normal();
      }
      batch.weights = weights;
    }
    stack.samples_per_sc += samples_per_sc + random.Integer(0, 1);
    stack.rows_per_shard += (feature.vocabulary_size - 1) / num_scs + 1;
    stack.features.push_back(std::move(feature));
  }
  stack.samples_per_sc = std::max<int64_t>(stack.samples_per_sc, 1);
  return stack;
}

// What the converter and the lookup from its buffers give.
Result<std::vector<float>> ByBuffers(
    const convert::StackPlan& plan, const RandomStack& stack,
    std::span<const LookupTable> tables, int64_t dim,
    const std::optional<Quantization>& quantization) {
  const Topology& topology = stack.topology;
  const int64_t num_cells = plan.coo_cells_per_device;
  std::vector<int32_t> row_pointers(
      RowPointersPerDevice(topology, /*enable_minibatching=*/false));
  std::vector<int32_t> embedding_ids(num_cells);
  std::vector<int32_t> sample_ids(num_cells);
  std::vector<float> gains(num_cells);
  const convert::CsrBuffers cells{.row_pointers = row_pointers,
                                  .embedding_ids = embedding_ids,
                                  .sample_ids = sample_ids,
                                  .gains = gains};
  InlineExecutor executor;
  JTE_RETURN_IF_ERROR(convert::Convert({&plan, 1}, {.topology = topology},
                                       {&cells, 1}, executor, nullptr));
  const CooBuffers buffers{row_pointers, embedding_ids, sample_ids, gains};
  const CooGeometry geometry{.num_sc_per_device = topology.num_sc_per_device,
                             .rows_per_shard = stack.rows_per_shard,
                             .batch_size_per_sc = stack.samples_per_sc,
                             .enable_minibatching = false,
                             .num_minibatches = 1,
                             .num_devices = topology.global_device_count};
  std::vector<float> out(geometry.batch_size() * dim, kNaN);
  JTE_RETURN_IF_ERROR(LookupInTables(buffers, geometry, tables, dim,
                                     quantization, out, executor));
  return out;
}

template <typename T>
std::vector<std::vector<T>> RandomTables(Random& random, int64_t num_tables,
                                         int64_t size) {
  std::vector<std::vector<T>> tables(num_tables, std::vector<T>(size));
  for (auto& table : tables) {
    for (T& value : table) {
      const float normal = random.Normal();
      if constexpr (std::is_same_v<T, float>) {
        value = normal;
      } else {
        value = T{static_cast<uint16_t>(std::bit_cast<uint32_t>(normal) >> 16 &
                                        0xbfff)};
      }
    }
  }
  return tables;
}

template <typename T>
class LookupIdsPropertyTest : public testing::Test {};
using TableTypes = testing::Types<float, Bfloat16, Float16>;
TYPED_TEST_SUITE(LookupIdsPropertyTest, TableTypes);

TYPED_TEST(LookupIdsPropertyTest, HasTheBitsOfTheLookupFromBuffers) {
  constexpr int64_t kDims[] = {1, 8, 40, 64, 103};
  int num_errors = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RandomStack stack = MakeRandomStack(random);
    const int64_t dim = kDims[random.Integer(0, 4)];
    const int64_t num_samples =
        stack.samples_per_sc * stack.topology.num_sc_per_device;
    auto plan = convert::PlanStack({.name = "stack",
                                    .combiner = stack.combiner,
                                    .max_ids_per_partition = 1 << 20,
                                    .max_unique_ids_per_partition = 1 << 20},
                                   stack.topology.num_sc_per_device << 15,
                                   stack.features, stack.topology);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto arrays = RandomTables<TypeParam>(
        random, stack.topology.global_device_count,
        stack.rows_per_shard * stack.topology.num_sc_per_device * dim);
    std::vector<LookupTable> tables;
    for (const auto& array : arrays) {
      tables.push_back(std::span<const TypeParam>(array));
    }
    std::optional<Quantization> quantization;
    if (random.OneIn(4)) {
      quantization = {.min_value = -1, .max_value = 1, .num_buckets = 16};
    }
    const auto expected = ByBuffers(*plan, stack, tables, dim, quantization);
    for (const int num_threads : {1, 3}) {
      const auto found = LookUp(*plan, tables, stack.rows_per_shard, dim,
                                num_samples, num_threads, quantization);
      ASSERT_EQ(found.has_value(), expected.has_value());
      if (!expected) {
        EXPECT_EQ(found.error().message, expected.error().message);
        ++num_errors;
        continue;
      }
      for (size_t i = 0; i < expected->size(); ++i) {
        const float value = (*expected)[i];
        if (value != value) {
          ASSERT_NE((*found)[i], (*found)[i]) << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>((*found)[i]),
                    std::bit_cast<uint32_t>(value))
              << i;
        }
      }
    }
  }
  EXPECT_GT(num_errors, 10);
  EXPECT_LT(num_errors, 150);
}

}  // namespace
}  // namespace jte::kernels
