// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The conversion of random requests, emulated, beside that of the CPU: the same
// bits, in whatever order threads run. Every array has its exact size, so that
// a sanitizer sees what is read or written beyond it.

#include "jax_tpu_embedding/sparsecore/cc/gpu/convert_ids.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
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

// A request of one device, with room for all of its ids, and larger tables.
convert::Request RequestOfOneDevice(convert::Random& random) {
  convert::Request request = convert::RandomRequest(random);
  while (request.options.topology.local_device_count != 1) {
    request = convert::RandomRequest(random);
  }
  request.options.enable_minibatching = false;
  request.options.allow_id_dropping = false;
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
  return request;
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
  int64_t n = 0;
  int64_t max_samples = 0;
  int64_t rows_per_shard = 0;
  for (const RawIds& feature : features) {
    n += feature.num_ids;
    max_samples = std::max(max_samples, feature.num_samples);
  }
  for (const auto& feature : plan.features) {
    rows_per_shard = std::max<int64_t>(rows_per_shard, feature.last_row + 1);
  }
  const int64_t num_blocks = topology.num_sc_per_device * topology.num_scs();
  Ints blocks(n), rows(n), samples(n);
  std::vector<float> gains(n), factors(max_samples);
  Ints keys(n), other_keys(n), order(n), other_order(n);
  Ints first_entries(num_blocks + 1), cells(num_blocks), ends(num_blocks);
  ConversionErrors errors = {-1, -1};
  EXPECT_EQ(
      ConvertIds(
          Stream(), features,
          {.combiner = plan.combiner,
           .num_shards = topology.num_scs(),
           .num_sc_per_device = topology.num_sc_per_device,
           .rows_per_shard = rows_per_shard,
           .row_pointers_per_block = RowPointersPerBlock(topology.num_scs()),
           .cells_per_sc = plan.coo_cells_per_sc()},
          kErrorMark,
          {{blocks, rows, samples, gains.data()},
           keys,
           other_keys,
           order,
           other_order,
           factors.data(),
           first_entries,
           cells,
           ends,
           &errors,
           Scratch{}},
          {buffers.row_pointers.data(), buffers.embedding_ids.data(),
           buffers.sample_ids.data(), buffers.gains.data()}),
      nullptr);
  EXPECT_EQ(errors.any != 0, buffers.row_pointers[0] == kErrorMark);
  buffers.ReplaceNaNs();
  return buffers;
}

class ConvertIdsTest : public testing::TestWithParam<unsigned> {
 protected:
  ConvertIdsTest() { SeedOrder(GetParam()); }
};

TEST_P(ConvertIdsTest, BuffersAreThoseOfTheCpu) {
  convert::Random random(GetParam());
  InlineExecutor executor;
  int num_converted = 0;
  int num_failed = 0;
  for (int i = 0; i < 300; ++i) {
    const convert::Request request = RequestOfOneDevice(random);
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
                                              {&view, 1}, executor, nullptr);
      FeaturesOfStack features(plan);
      Buffers actual = Converted(plan, features.raw_ids());
      if (!converted) {
        EXPECT_EQ(actual.row_pointers[0], kErrorMark);
        actual.row_pointers[0] = 0;
        EXPECT_THAT(actual.row_pointers, Each(0));
        ++num_failed;
        continue;
      }
      expected.ReplaceNaNs();
      EXPECT_EQ(actual.row_pointers, expected.row_pointers);
      EXPECT_EQ(actual.embedding_ids, expected.embedding_ids);
      EXPECT_EQ(actual.sample_ids, expected.sample_ids);
      EXPECT_EQ(Bytes(actual.gains), Bytes(expected.gains));
      ++num_converted;
    }
  }
  EXPECT_GT(num_converted, 300);
  EXPECT_GT(num_failed, 5);
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
