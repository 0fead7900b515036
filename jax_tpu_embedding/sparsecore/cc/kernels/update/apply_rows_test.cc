// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

namespace {

using ::testing::HasSubstr;

// A table, its slots and a gradient, all random.
struct State {
  std::vector<float> table;
  std::vector<std::vector<float>> slots;
  std::vector<float> gradient;
};

State RandomState(const RandomCoo& coo, int64_t dim, int num_slots) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  const auto fill = [&random, &uniform](int64_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = uniform(random);
    return values;
  };
  State state{.table = fill(coo.num_rows() * dim),
              .slots = {},
              .gradient = fill(coo.num_samples() * dim)};
  for (int k = 0; k < num_slots; ++k) {
    state.slots.push_back(fill(coo.num_rows() * dim));
  }
  return state;
}

Result<void> Apply(const RandomCoo& coo, int64_t dim,
                   const Optimizer& optimizer, State& state,
                   Executor& executor) {
  std::vector<std::span<float>> slots(state.slots.begin(), state.slots.end());
  return ApplyRows(coo.buffers(), coo.geometry, state.gradient, dim, optimizer,
                   {.table = state.table, .slots = slots}, executor);
}

// One SGD step in the order that the kernel promises: entries of a source in
// blocks, then blocks, then sources.
std::vector<float> ExpectedAfterSgd(const RandomCoo& coo, int64_t dim,
                                    const State& state, float learning_rate) {
  std::vector<float> expected = state.table;
  std::vector<Entry> entries = coo.entries;
  std::ranges::stable_sort(entries, {}, &Entry::row);
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    while (end < entries.size() && entries[end].row == entries[begin].row) {
      ++end;
    }
    for (int64_t d = 0; d < dim; ++d) {
      float total = 0.0f;
      for (size_t i = begin; i < end;) {
        const auto source_of = [&coo, &entries](size_t k) {
          return entries[k].sample / coo.geometry.batch_size_per_sc;
        };
        float of_source = 0.0f;
        const int64_t source = source_of(i);
        while (i < end && source_of(i) == source) {
          float of_block = 0.0f;
          for (int64_t k = 0;
               k < kTermsPerBlock && i < end && source_of(i) == source;
               ++k, ++i) {
            of_block +=
                entries[i].gain * state.gradient[entries[i].sample * dim + d];
          }
          of_source += of_block;
        }
        total += of_source;
      }
      expected[entries[begin].row * dim + d] -= total * learning_rate;
    }
  }
  return expected;
}

// (S, D, minibatches; 0: without minibatching).
class ApplyRowsTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  RandomCoo MakeCoo() const {
    const auto [num_scs, dim, num_minibatches] = GetParam();
    return MakeRandomCoo(
        {.num_sc_per_device = num_scs,
         .rows_per_shard = 3000,
         .batch_size_per_sc = 1200,
         .enable_minibatching = num_minibatches > 0,
         .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
        /*ids_per_sample=*/8, /*seed=*/4);
  }
  int64_t dim() const { return std::get<1>(GetParam()); }
};

TEST_P(ApplyRowsTest, SumsGradientsPerRowBeforeTheStep) {
  const RandomCoo coo = MakeCoo();
  const float learning_rate = 0.01f;
  const State before = RandomState(coo, dim(), 0);
  State state = before;
  InlineExecutor executor;
  const auto done =
      Apply(coo, dim(), {.rule = "sgd", .hyperparameters = {&learning_rate, 1}},
            state, executor);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(state.table, ExpectedAfterSgd(coo, dim(), before, learning_rate));
}

TEST_P(ApplyRowsTest, GivesTheSameBitsForAnyNumberOfThreads) {
  const RandomCoo coo = MakeCoo();
  const std::vector<float> hyperparameters = {0.01f, 0.9f, 0.99f, 1e-6f};
  const Optimizer adam{.rule = "adam", .hyperparameters = hyperparameters};
  State expected = RandomState(coo, dim(), 2);
  InlineExecutor executor;
  ASSERT_TRUE(Apply(coo, dim(), adam, expected, executor));
  for (int num_threads : {2, 5}) {
    State state = RandomState(coo, dim(), 2);
    ThreadExecutor threads(num_threads);
    ASSERT_TRUE(Apply(coo, dim(), adam, state, threads));
    EXPECT_EQ(state.table, expected.table);
    EXPECT_EQ(state.slots, expected.slots);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ApplyRowsTest,
                         testing::Combine(testing::Values(1, 2, 3, 9),
                                          testing::Values(1, 8, 64, 72),
                                          testing::Values(0, 1, 3)));

// Eight of its rows have a thousand entries or more, in a gradient that is
// larger than a cache: what HotRowsPay asks for.
TEST(ApplyRowsTest, StepsHotRowsAndTheirNeighbours) {
  constexpr int64_t kDim = 40;
  const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 1,
                                       .rows_per_shard = 3000,
                                       .batch_size_per_sc = 8192,
                                       .enable_minibatching = false,
                                       .num_minibatches = 1},
                                      /*ids_per_sample=*/2, /*seed=*/4);
  const float learning_rate = 0.01f;
  const State before = RandomState(coo, kDim, 0);
  const std::vector<float> expected =
      ExpectedAfterSgd(coo, kDim, before, learning_rate);
  for (int num_threads : {1, 3, 20}) {
    State state = before;
    ThreadExecutor executor(num_threads);
    ASSERT_TRUE(Apply(coo, kDim,
                      {.rule = "sgd", .hyperparameters = {&learning_rate, 1}},
                      state, executor));
    EXPECT_EQ(state.table, expected) << num_threads << " threads";
  }
}

// One core, three rows of one column; row 1 has gradient 2 * 0.5 + 4 * 0.25
// = 2.
RandomCoo SmallCoo() {
  return {.geometry = {.num_sc_per_device = 1,
                       .rows_per_shard = 3,
                       .batch_size_per_sc = 2,
                       .enable_minibatching = false,
                       .num_minibatches = 1},
          .row_pointers = {2, 8, 8, 8, 8, 8, 8, 8},
          .embedding_ids = {1, 1, -1, -1, -1, -1, -1, -1},
          .sample_ids = {0, 1, -1, -1, -1, -1, -1, -1},
          .gains = {0.5f, 0.25f, NAN, NAN, NAN, NAN, NAN, NAN},
          .entries = {}};
}

State SmallState() {
  return {.table = {1.0f, 1.0f, 1.0f},
          .slots = {{4.0f, 12.0f, 4.0f}},
          .gradient = {2.0f, 4.0f}};
}

// One step of Adagrad with a learning rate of 0.5, on rows of one number.
Result<void> ApplyAdagrad(const RandomCoo& coo, State& state,
                          const RowOptions& options = {}) {
  const float learning_rate = 0.5f;
  InlineExecutor executor;
  return Apply(coo, 1,
               {.rule = "adagrad",
                .hyperparameters = {&learning_rate, 1},
                .options = options},
               state, executor);
}

TEST(ApplyRowsTest, StepsAdagradByHand) {
  const RandomCoo coo = SmallCoo();
  State state = SmallState();
  ASSERT_TRUE(ApplyAdagrad(coo, state));
  // a = 12 + 2 * 2 = 16;  w = 1 - 0.5 * 2 / 4 = 0.75
  EXPECT_EQ(state.slots[0], (std::vector<float>{4.0f, 16.0f, 4.0f}));
  EXPECT_EQ(state.table, (std::vector<float>{1.0f, 0.75f, 1.0f}));
}

TEST(ApplyRowsTest, ClipsOnlyTheTableAndOnlyReferencedRows) {
  const RandomCoo coo = SmallCoo();
  State state = SmallState();
  ASSERT_TRUE(
      ApplyAdagrad(coo, state, {.min_value = -0.25f, .max_value = 0.25f}));
  EXPECT_EQ(state.slots[0], (std::vector<float>{4.0f, 16.0f, 4.0f}));
  EXPECT_EQ(state.table, (std::vector<float>{1.0f, 0.25f, 1.0f}));
}

TEST(ApplyRowsTest, NaNGradientsStayVisibleThroughClipping) {
  const RandomCoo coo = SmallCoo();
  State state = SmallState();
  state.gradient[0] = NAN;
  ASSERT_TRUE(
      ApplyAdagrad(coo, state, {.min_value = -1.0f, .max_value = 1.0f}));
  EXPECT_TRUE(std::isnan(state.table[1]));
}

TEST(ApplyRowsTest, NothingToDoTouchesNothing) {
  RandomCoo coo = SmallCoo();
  coo.row_pointers = {0, 0, 0, 0, 0, 0, 0, 0};
  State state = SmallState();
  ASSERT_TRUE(ApplyAdagrad(coo, state));
  EXPECT_EQ(state.table, SmallState().table);
}

// Entries that are out of order, as a converter other than ours may leave them.
TEST(ApplyRowsTest, SumsARowWhoseEntriesAreApart) {
  RandomCoo coo = SmallCoo();
  coo.row_pointers[0] = 3;
  std::ranges::copy(std::vector<int32_t>{1, 0, 1}, coo.embedding_ids.begin());
  std::ranges::copy(std::vector<int32_t>{0, 0, 1}, coo.sample_ids.begin());
  std::ranges::copy(std::vector<float>{0.5f, 1.0f, 0.25f}, coo.gains.begin());
  State state = SmallState();
  ASSERT_TRUE(ApplyAdagrad(coo, state));
  EXPECT_EQ(state.slots[0], (std::vector<float>{8.0f, 16.0f, 4.0f}));
}

struct BadCase {
  std::string_view rule;
  int num_slots;
  int num_hyperparameters;
  std::string message;  // empty: valid
};

TEST(ApplyRowsTest, RefusesWhatDoesNotFitTheRule) {
  const std::vector<float> hyperparameters(5, 0.5f);
  for (const BadCase& bad : std::vector<BadCase>{
           {"adagrad", 1, 1, ""},
           {"adagard", 1, 1, "There is no update rule 'adagard'; choose"},
           {"adagrad", 0, 1, "Update rule 'adagrad' has 1 slots, got 0."},
           {"adagrad", 1, 2, "has 1 hyperparameters, got 2."}}) {
    State state = SmallState();
    state.slots.resize(bad.num_slots);
    InlineExecutor executor;
    const auto done =
        Apply(SmallCoo(), 1,
              {.rule = bad.rule,
               .hyperparameters =
                   std::span(hyperparameters).first(bad.num_hyperparameters)},
              state, executor);
    if (bad.message.empty()) {
      EXPECT_TRUE(done);
      continue;
    }
    ASSERT_FALSE(done) << bad.message;
    EXPECT_THAT(done.error().message, HasSubstr(bad.message));
    EXPECT_EQ(state.table, SmallState().table);
  }
}

}  // namespace

}  // namespace jte::kernels
