// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"

namespace jte::kernels {
namespace {

using Entries = std::vector<std::vector<std::pair<int32_t, float>>>;

// By sample: rows in order, those that repeat with the sum of their weights.
Entries Expected(std::span<const int32_t> ids, std::span<const float> weights,
                 std::span<const int64_t> row_splits) {
  Entries entries;
  for (size_t s = 0; s + 1 < row_splits.size(); ++s) {
    std::map<int32_t, float> gains;
    for (int64_t i = row_splits[s]; i < row_splits[s + 1]; ++i) {
      const auto [place, is_new] = gains.try_emplace(ids[i], weights[i]);
      if (!is_new) place->second += weights[i];
    }
    entries.emplace_back(gains.begin(), gains.end());
  }
  return entries;
}

Entries Actual(const SortedSamples& samples) {
  Entries entries;
  for (int64_t s = 0; s < samples.num_samples(); ++s) {
    entries.emplace_back();
    for (int64_t i = samples.begin(s); i < samples.ends[s]; ++i) {
      entries.back().emplace_back(samples.entries[i].row,
                                  samples.entries[i].gain);
    }
  }
  return entries;
}

class IdEntriesTest : public testing::TestWithParam<int64_t> {};

// A sample has up to 31 ids, whose positions have five bits: with 26 bits for
// the row of an id both fit a lane of 31 bits, with 27 bits one of 32.
TEST_P(IdEntriesTest, AreThoseOfEachSampleByRow) {
  const int64_t vocabulary_size = GetParam();
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int64_t> row_splits = {0};
  for (int64_t sample = 0; sample < 100; ++sample) {
    // Of the last ones, most have few ids, then one has many, and one too many
    // for a network.
    const int64_t size = sample == 70   ? 128
                         : sample == 90 ? 300
                         : sample > 50  ? random() % 4
                                        : random() % 32;
    for (int64_t i = 0; i < size; ++i) {
      // Some of them often, and the last ones.
      const auto id =
          random() % 2 == 0
              ? static_cast<int32_t>(random() % 8)
              : static_cast<int32_t>(vocabulary_size - 1 - random() % 8);
      ids.push_back(id);
      weights.push_back(uniform(random));
    }
    row_splits.push_back(std::ssize(ids));
  }
  const auto plan = convert::PlanStack(
      {.name = "stack", .combiner = "sum"}, /*coo_cells_per_device=*/8,
      {{.name = "feature",
        .vocabulary_size = vocabulary_size,
        .batch = {.ids = std::span<const int32_t>(ids),
                  .weights = std::span<const float>(weights),
                  .num_samples = std::ssize(row_splits) - 1,
                  .row_splits = std::span<const int64_t>(row_splits)}}},
      {.local_device_count = 1,
       .global_device_count = 1,
       .num_sc_per_device = 1});
  ASSERT_TRUE(plan) << plan.error().message;
  const convert::FeaturePlan& feature = plan->features.front();

  IdEntries entries;
  ASSERT_TRUE(entries.Read(*plan, feature, SliceOf(*plan, feature, 0),
                           RowNumbers(*plan, vocabulary_size)));
  EXPECT_EQ(Actual(entries.view()), Expected(ids, weights, row_splits));
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, IdEntriesTest,
                         testing::Values(16, 1 << 20, 1 << 26, 1 << 27,
                                         (1 << 27) + 1, 1 << 30));

}  // namespace
}  // namespace jte::kernels
