// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The conversion of random requests, emulated, beside that of the CPU: the same
// bits, in whatever order threads run. Every array has its exact size, so that
// a sanitizer sees what is read or written beyond it.

#include "jax_tpu_embedding/sparsecore/cc/gpu/convert_ids.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/testing/random_request.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::gpu {
namespace {

using ::testing::Each;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int32_t kErrorMark = -7;

struct Buffers {
  Buffers(int64_t num_row_pointers, int64_t num_cells)
      : row_pointers(num_row_pointers, -1),
        embedding_ids(num_cells, -1),
        sample_ids(num_cells, -1),
        gains(num_cells, -1.0f) {}

  // Any NaN is as good as another.
  void ReplaceNaNs() {
    std::ranges::replace_if(
        gains, [](float x) { return std::isnan(x); },
        std::numeric_limits<float>::quiet_NaN());
  }

  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
};

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(float)};
}

// A request of one device.
convert::Request RequestOfOneDevice(convert::Random& random) {
  convert::Request request = convert::RandomRequest(random);
  while (request.options.topology.local_device_count != 1) {
    request = convert::RandomRequest(random);
  }
  request.options.enable_minibatching = false;
  request.options.allow_id_dropping = false;
  return request;
}

// Appends the features of all stacks of `other`, which has the options of
// `request`, as features of one stack.
void Append(convert::Request other, const convert::StackSpec& spec,
            convert::Request& request) {
  // What features refer to does not move with the vectors.
  const auto take = [](auto& from, auto& to) {
    std::ranges::move(from, std::back_inserter(to));
  };
  take(other.int32s, request.int32s);
  take(other.int64s, request.int64s);
  take(other.uint64s, request.uint64s);
  take(other.weights, request.weights);
  const int64_t num_devices = request.options.topology.global_device_count;
  int64_t end = 0;
  for (const auto& [feature, stack] : request.features) {
    end += feature.batch.num_samples * num_devices;
  }
  std::map<std::string, int64_t> sizes;  // of stacks
  for (const auto& [feature, stack] : other.features) {
    sizes[stack.name] += feature.batch.num_samples * num_devices;
  }
  for (const auto& [name, size] : sizes) {
    for (auto& [feature, stack] : other.features) {
      if (stack.name != name) continue;
      feature.name = "feature" + std::to_string(request.features.size());
      feature.transform.row_offset += end;
      request.features.push_back({feature, spec});
    }
    end += size;
  }
}

// A request of one device and one stack with so many features, or a few more.
convert::Request RequestOfManyFeatures(convert::Random& random,
                                       size_t num_features) {
  convert::Request other = RequestOfOneDevice(random);
  convert::Request request;
  request.options = other.options;
  const convert::StackSpec spec = other.features.front().stack;
  // Most requests would have an error if each of their features might.
  const bool may_fail = random.OneIn(4);
  const auto key = [](const convert::ConvertOptions& options) {
    return std::tuple(options.topology.global_device_count,
                      options.topology.num_sc_per_device,
                      options.feature_stacking_strategy);
  };
  for (; request.features.size() < num_features;
       other = RequestOfOneDevice(random)) {
    if (key(other.options) != key(request.options)) continue;
    for (auto& [feature, stack] : other.features) {
      if (may_fail) continue;
      if (feature.out_of_range_ids == convert::IdPolicy::kError) {
        feature.out_of_range_ids = convert::IdPolicy::kClamp;
      }
      if (feature.non_finite_weights == convert::WeightPolicy::kError) {
        feature.non_finite_weights = convert::WeightPolicy::kKeep;
      }
    }
    Append(std::move(other), spec, request);
  }
  return request;
}

// Makes room for all ids, and tables larger.
void MakeRoom(convert::Request& request) {
  const Topology& topology = request.options.topology;
  std::map<std::string, int64_t> num_ids;
  for (const auto& [feature, stack] : request.features) {
    num_ids[stack.name] += feature.batch.num_ids();
  }
  for (auto& [feature, stack] : request.features) {
    // With several SparseCores, keys of large tables have more than one word.
    if (feature.vocabulary_size > 1'000'000) {
      feature.vocabulary_size =
          (kMaxInt32 / topology.num_scs() - 20) * topology.num_scs();
    }
    stack.max_ids_per_partition = kMaxInt32;
    stack.max_unique_ids_per_partition = kMaxInt32;
    stack.suggested_coo_buffer_size_per_device =
        RoundUp(num_ids[stack.name] + kAlignment * topology.num_scs(),
                kAlignment) *
        topology.num_sc_per_device;
  }
}

// The features of a stack, with their row splits as GPUs have them.
class FeaturesOfStack {
 public:
  explicit FeaturesOfStack(const convert::StackPlan& plan)
      : row_splits_(plan.features.size()) {
    for (size_t f = 0; f < plan.features.size(); ++f) {
      const auto& feature = plan.features[f];
      const auto& batch = feature.input.batch;
      row_splits_[f].assign(batch.row_splits.begin(), batch.row_splits.end());
      const bool splits_first =
          plan.strategy == FeatureStackingStrategy::kSplitThenStack;
      raw_ids_.push_back(
          {.ids = std::visit(
               [](auto ids) { return static_cast<const void*>(ids.data()); },
               batch.ids),
           .type = static_cast<IdType>(batch.ids.index()),
           .weights = batch.weights ? batch.weights->data() : nullptr,
           .row_splits =
               batch.row_splits.empty() ? nullptr : row_splits_[f].data(),
           .valency = batch.valency,
           .num_ids = batch.num_ids(),
           .num_samples = batch.num_samples,
           .vocabulary_size = feature.input.vocabulary_size,
           .id_policy = feature.input.out_of_range_ids,
           .weight_policy = feature.input.non_finite_weights,
           .samples_before = splits_first ? 0 : feature.samples_before,
           .samples_per_sc = splits_first ? batch.num_samples /
                                                plan.topology.num_sc_per_device
                                          : plan.num_sample_ids,
           .first_sample_id = splits_first ? feature.samples_before : 0,
           .first_row = feature.first_row,
           .rotation = feature.rotation});
    }
  }

  std::vector<RawIds>& raw_ids() { return raw_ids_; }

 private:
  std::vector<std::vector<int32_t>> row_splits_;
  std::vector<RawIds> raw_ids_;
};

Buffers Converted(const convert::StackPlan& plan,
                  const std::vector<RawIds>& features) {
  const Topology& topology = plan.topology;
  const int64_t num_row_pointers = RowPointersPerDevice(topology, false);
  Buffers buffers(num_row_pointers, plan.coo_cells_per_device);
  int64_t rows_per_shard = 0;
  for (const auto& feature : plan.features) {
    rows_per_shard = std::max<int64_t>(rows_per_shard, feature.last_row + 1);
  }
  const bool has_errors = Convert(
      features,
      {.combiner = plan.combiner,
       .num_shards = topology.num_scs(),
       .num_sc_per_device = topology.num_sc_per_device,
       .rows_per_shard = rows_per_shard,
       .row_pointers_per_block = RowPointersPerBlock(topology.num_scs()),
       .cells_per_sc = plan.coo_cells_per_sc()},
      kErrorMark,
      {buffers.row_pointers.data(), buffers.embedding_ids.data(),
       buffers.sample_ids.data(), buffers.gains.data()});
  EXPECT_EQ(has_errors, buffers.row_pointers[0] == kErrorMark);
  buffers.ReplaceNaNs();
  return buffers;
}

class ConvertIdsTest : public testing::TestWithParam<unsigned> {
 protected:
  ConvertIdsTest() : random_(GetParam()) { SeedOrder(GetParam()); }

  void ExpectBuffersOfCpu(convert::Request request);

  convert::Random random_;
  InlineExecutor executor_;
  int num_converted_ = 0;
  int num_failed_ = 0;
};

void ConvertIdsTest::ExpectBuffersOfCpu(convert::Request request) {
  MakeRoom(request);
  const auto stacks =
      convert::PlanConversion(request.features, request.options);
  ASSERT_TRUE(stacks) << stacks.error().message;
  for (const convert::StackPlan& plan : *stacks) {
    Buffers expected(RowPointersPerDevice(plan.topology, false),
                     plan.coo_cells_per_device);
    const convert::CsrBuffers view = {.row_pointers = expected.row_pointers,
                                      .embedding_ids = expected.embedding_ids,
                                      .sample_ids = expected.sample_ids,
                                      .gains = expected.gains,
                                      .padding_gain = 0.0f};
    const auto converted = convert::Convert({&plan, 1}, request.options,
                                            {&view, 1}, executor_, nullptr);
    FeaturesOfStack features(plan);
    Buffers actual = Converted(plan, features.raw_ids());
    if (!converted) {
      EXPECT_EQ(actual.row_pointers[0], kErrorMark);
      actual.row_pointers[0] = 0;
      EXPECT_THAT(actual.row_pointers, Each(0));
      ++num_failed_;
      continue;
    }
    expected.ReplaceNaNs();
    EXPECT_EQ(actual.row_pointers, expected.row_pointers);
    EXPECT_EQ(actual.embedding_ids, expected.embedding_ids);
    EXPECT_EQ(actual.sample_ids, expected.sample_ids);
    EXPECT_EQ(Bytes(actual.gains), Bytes(expected.gains));
    ++num_converted_;
  }
}

TEST_P(ConvertIdsTest, BuffersAreThoseOfTheCpu) {
  for (int i = 0; i < 300; ++i) ExpectBuffersOfCpu(RequestOfOneDevice(random_));
  EXPECT_GT(num_converted_, 300);
  EXPECT_GT(num_failed_, 5);
}

// As many as share a launch, a few less and more, and many more.
TEST_P(ConvertIdsTest, BuffersOfManyFeaturesAreThoseOfTheCpu) {
  for (const size_t num_features : {24, 25, 26, 27, 28, 29, 57, 64}) {
    SCOPED_TRACE(num_features);
    for (int i = 0; i < 3; ++i) {
      ExpectBuffersOfCpu(RequestOfManyFeatures(random_, num_features));
    }
  }
  EXPECT_GT(num_converted_, 12);
  EXPECT_GT(num_failed_, 0);
}

// None of its features has an id.
TEST_P(ConvertIdsTest, BuffersWithoutIdsAreThoseOfTheCpu) {
  convert::Request request;
  while (request.features.empty() ||
         std::ranges::any_of(request.features, [](const auto& stacked) {
           return stacked.feature.batch.num_ids() > 0;
         })) {
    request = RequestOfOneDevice(random_);
  }
  ExpectBuffersOfCpu(std::move(request));
  EXPECT_GT(num_converted_, 0);
}

// Those of others have their own.
TEST_P(ConvertIdsTest, WrongRowSplitsAreErrorsOfTheirFeature) {
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<int32_t> right = {0, 1, 3, 4, 4};
  const std::vector<int32_t> wrong = {0, 3, 1, 4, 4};
  RawIds feature = {.ids = ids.data(),
                    .type = IdType::kInt32,
                    .weights = nullptr,
                    .row_splits = right.data(),
                    .valency = 0,
                    .num_ids = 4,
                    .num_samples = 4,
                    .vocabulary_size = 4,
                    .id_policy = convert::IdPolicy::kError,
                    .weight_policy = convert::WeightPolicy::kError,
                    .samples_before = 0,
                    .samples_per_sc = 4,
                    .first_sample_id = 0,
                    .first_row = 0,
                    .rotation = 0};
  std::vector<RawIds> features;
  for (int f = 0; f < 3; ++f, feature.first_sample_id += 4) {
    features.push_back(feature);
  }
  features[1].row_splits = wrong.data();
  Buffers buffers(kMinRowPointersPerBlock, 16);
  EXPECT_TRUE(
      Convert(features,
              {.combiner = convert::Combiner::kMean,
               .num_shards = 1,
               .num_sc_per_device = 1,
               .rows_per_shard = 4,
               .row_pointers_per_block = kMinRowPointersPerBlock,
               .cells_per_sc = 16},
              /*error_mark=*/0,
              {buffers.row_pointers.data(), buffers.embedding_ids.data(),
               buffers.sample_ids.data(), buffers.gains.data()}));
  EXPECT_EQ(buffers.row_pointers[0], 12);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(std::isnan(buffers.gains[i]), buffers.sample_ids[i] / 4 == 1);
  }
}

TEST_P(ConvertIdsTest, WrongRowSplitsReadNothingBeyondTheIds) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int64_t> right = {0, 2, 4, 6, 8};
  const convert::StackedFeature feature = {
      .feature = {.name = "f",
                  .vocabulary_size = 8,
                  .batch = {.ids = std::span<const int32_t>(ids),
                            .num_samples = 4,
                            .row_splits = right}},
      .stack = {.name = "s",
                .combiner = "mean",
                .max_ids_per_partition = 8,
                .max_unique_ids_per_partition = 8}};
  const auto stacks = convert::PlanConversion(
      {feature}, {.topology = {.num_sc_per_device = 2}});
  ASSERT_TRUE(stacks) << stacks.error().message;
  const convert::StackPlan& plan = stacks->front();
  FeaturesOfStack features(plan);
  for (const std::vector<int32_t>& wrong :
       std::vector<std::vector<int32_t>>{{1, 2, 4, 6, 8},
                                         {0, 4, 2, 6, 8},
                                         {0, 2, 4, 6, 9},
                                         {0, 2, 4, 6, 1 << 30},
                                         {0, -1, 4, 6, 8},
                                         {0, 0, 0, 0, -1}}) {
    features.raw_ids()[0].row_splits = wrong.data();
    const Buffers buffers = Converted(plan, features.raw_ids());
    EXPECT_EQ(buffers.row_pointers[0], kErrorMark);
    // The ids are shared out evenly, and show that something is wrong.
    int num_entries = 0;
    for (size_t i = 0; i < buffers.gains.size(); ++i) {
      if (buffers.embedding_ids[i] == kPaddingId) continue;
      EXPECT_TRUE(std::isnan(buffers.gains[i]));
      ++num_entries;
    }
    EXPECT_EQ(num_entries, 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, ConvertIdsTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace jte::gpu
