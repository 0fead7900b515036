// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How much a step on one device launches. With small batches that is most of
// its time.

#include <cstdint>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::gpu {

void PrintTo(const LaunchCounts& counts, std::ostream* out) {
  *out << counts.kernels << " kernels, " << counts.fills << " fills, "
       << counts.of_cub << " of CUB";
}

namespace {

constexpr int64_t kSamples = 4;  // of each feature
constexpr int64_t kValency = 8;
constexpr int64_t kRows = 100;
constexpr int64_t kDim = 4;
constexpr int64_t kBlockSize = 512;

template <typename Run>
LaunchCounts CountsOf(const Run& run) {
  const LaunchCounts before = Launches();
  run();
  return Launches() - before;
}

struct CountsOfStep {
  LaunchCounts conversion;
  LaunchCounts lookup;
  LaunchCounts update;
};

// Features with the same ids, as a stack of tables that follow each other.
CountsOfStep Step(int64_t num_features, convert::Combiner combiner,
                  bool is_ragged, bool has_weights) {
  CountsOfStep counts;
  std::vector<int32_t> ids(kSamples * kValency);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * 3);
  const std::vector<float> weights(ids.size(), 0.5f);
  std::vector<int32_t> row_splits;
  for (int32_t s = 0; s <= kSamples; ++s) row_splits.push_back(s * kValency);
  std::vector<RawIds> features;
  for (int64_t f = 0; f < num_features; ++f) {
    features.push_back({.ids = ids.data(),
                        .type = IdType::kInt32,
                        .weights = has_weights ? weights.data() : nullptr,
                        .row_splits = is_ragged ? row_splits.data() : nullptr,
                        .valency = is_ragged ? 0 : kValency,
                        .num_ids = std::ssize(ids),
                        .num_samples = kSamples,
                        .vocabulary_size = kRows,
                        .id_policy = convert::IdPolicy::kError,
                        .weight_policy = convert::WeightPolicy::kError,
                        .samples_before = 0,
                        .samples_per_sc = kSamples,
                        .first_sample_id = f * kSamples,
                        .first_row = f * kRows,
                        .rotation = 0});
  }
  const int64_t num_cells = num_features * std::ssize(ids);
  const int64_t num_samples = num_features * kSamples;
  const int64_t num_rows = num_features * kRows;
  std::vector<int32_t> row_pointers(kMinRowPointersPerBlock);
  std::vector<int32_t> embedding_ids(num_cells), sample_ids(num_cells);
  std::vector<float> gains(num_cells);
  counts.conversion = CountsOf([&] {
    EXPECT_FALSE(Convert(features,
                         {.combiner = combiner,
                          .num_shards = 1,
                          .num_sc_per_device = 1,
                          .rows_per_shard = num_rows,
                          .row_pointers_per_block = kMinRowPointersPerBlock,
                          .cells_per_sc = num_cells},
                         /*error_mark=*/0,
                         {row_pointers.data(), embedding_ids.data(),
                          sample_ids.data(), gains.data()}));
  });
  const Batch batch({row_pointers, embedding_ids, sample_ids, gains},
                    {.num_sc_per_device = 1,
                     .rows_per_shard = num_rows,
                     .batch_size_per_sc = num_samples,
                     .enable_minibatching = false,
                     .num_minibatches = 1});
  std::vector<float> table(num_rows * kDim, 1.0f);
  std::vector<float> activations(num_samples * kDim);
  counts.lookup = CountsOf([&] {
    const auto groups = GroupedSamples::Of(batch);
    EXPECT_EQ(
        PoolSamples(Stream(), groups.view(), groups.num_cells(), table.data(),
                    num_samples, kDim, {}, activations.data()),
        nullptr);
  });
  counts.update = CountsOf([&] {
    const auto groups = GroupedRows::Of(batch, kBlockSize);
    Optimizer optimizer{};
    optimizer.hyperparameters[0].value = 0.5f;
    std::vector<float> block_sums(groups.max_row_blocks() * kDim);
    EXPECT_EQ(
        StepRows(
            Stream(), "sgd",
            TermsOf(batch, groups, activations, kDim, kBlockSize),
            groups.max_row_blocks(), block_sums.data(), optimizer,
            {.table = table.data(), .type = TableType::kFloat, .slots = {}}),
        nullptr);
  });
  return counts;
}

TEST(LaunchesTest, FeaturesShareThoseOfTheirConversion) {
  using convert::Combiner;
  struct Case {
    int64_t num_features;
    Combiner combiner;
    bool is_ragged;
    bool has_weights;
    LaunchCounts expected;
  };
  for (const Case& of : {
           Case{1, Combiner::kSum, false, false, {5, 0, 2}},
           {26, Combiner::kSum, false, false, {5, 0, 2}},
           {28, Combiner::kSum, false, true, {5, 0, 2}},
           {29, Combiner::kSum, false, true, {6, 0, 2}},
           {26, Combiner::kMean, false, false, {5, 0, 2}},
           {26, Combiner::kMean, false, true, {6, 0, 2}},
           {26, Combiner::kMean, true, false, {6, 0, 2}},
           {1, Combiner::kMean, true, true, {7, 0, 2}},
           {26, Combiner::kMean, true, true, {7, 0, 2}},
           {64, Combiner::kMean, true, true, {13, 0, 2}},
       }) {
    EXPECT_EQ(Step(of.num_features, of.combiner, of.is_ragged, of.has_weights)
                  .conversion,
              of.expected)
        << of.num_features << " features";
  }
}

TEST(LaunchesTest, ThoseOfLookupsAndUpdatesFollowFromTheSizeOfTheBatch) {
  const auto step = [](int64_t num_features) {
    return Step(num_features, convert::Combiner::kSum, false, false);
  };
  // 256 cells are looked at together.
  for (const int64_t num_features : {1, 8}) {
    EXPECT_EQ(step(num_features).lookup, (LaunchCounts{2, 0, 0}));
    EXPECT_EQ(step(num_features).update, (LaunchCounts{2, 0, 0}));
  }
  // No row of 512 cells has more than a block.
  for (const int64_t num_features : {9, 16}) {
    EXPECT_EQ(step(num_features).lookup, (LaunchCounts{5, 0, 1}));
    EXPECT_EQ(step(num_features).update, (LaunchCounts{2, 1, 1}));
  }
  EXPECT_EQ(step(26).lookup, (LaunchCounts{5, 0, 1}));
  EXPECT_EQ(step(26).update, (LaunchCounts{4, 1, 1}));
  // A sample of 1,025 may be long.
  EXPECT_EQ(step(33).lookup, (LaunchCounts{6, 0, 1}));
}

}  // namespace
}  // namespace jte::gpu
