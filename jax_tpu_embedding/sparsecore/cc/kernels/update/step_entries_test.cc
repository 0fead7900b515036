// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_entries.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

namespace {

constexpr int64_t kNumRows = 300;
constexpr int64_t kNumSamples = 50;
// The second is the power of FTRL and F2A, of which one has a faster step for
// the first of these, the other for the second.
constexpr std::array kHyperparameters = {
    std::array{0.3f, -0.5f, 0.6f, 0.2f, 2.0f, 1.0f},
    std::array{0.3f, 0.5f, 0.6f, 0.2f, 2.0f, 1.0f}};

// SGD, Adagrad, momentum and Lion, which do little.
constexpr int64_t kNumShortRules = 4;

// Each alone, and all that one pass serves.
constexpr std::array kOptions = {
    RowOptions{.l2_weight_decay = 0.1f},
    RowOptions{.decoupled_weight_decay = 0.2f},
    RowOptions{.min_value = 0.3f},
    RowOptions{.max_value = 0.4f},
    RowOptions{.l2_weight_decay = 0.1f,
               .decoupled_weight_decay = 0.2f,
               .min_value = 0.2f,
               .max_value = 0.5f},
};

// Shards whose rows are those of every other row of a table.
constexpr StochasticRounding kRounding = {
    .seed = 5, .num_shards = 2, .first_shard = 1, .rows_per_shard = kNumRows};

template <typename T>
struct Tables {
  std::vector<T> table;
  std::vector<float> slots[2];

  bool operator==(const Tables& other) const {
    return std::ranges::equal(std::as_bytes(std::span(table)),
                              std::as_bytes(std::span(other.table))) &&
           std::ranges::equal(slots, other.slots);
  }
};

struct How {
  const float* hyperparameters = nullptr;
  RowOptions options = {};
  std::optional<StochasticRounding> rounding = {};
};

StepEntriesFunction Step(const Rule& rule, const How& how) {
  const Steps steps = rule.choose_steps(how.hyperparameters);
  return how.options == RowOptions() ? steps.entries
                                     : steps.entries_with_options;
}

class StepEntriesTest : public testing::TestWithParam<int64_t> {
 protected:
  // Two rows in three have 1 to 4 entries, and one has a block of them.
  StepEntriesTest() {
    for (int32_t row = 0; row < kNumRows; ++row) {
      const int64_t size = row == 70      ? kTermsPerBlock
                           : row % 3 == 0 ? 0
                                          : 1 + random_() % 4;
      for (int64_t i = 0; i < size; ++i) {
        rows_.push_back(row);
        samples_.push_back(static_cast<int32_t>(random_() % kNumSamples));
        gains_.push_back(uniform_(random_));
      }
    }
    gradient_ = Random(kNumSamples * dim_);
  }

  std::vector<float> Random(int64_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = uniform_(random_);
    return values;
  }

  // Slots with a number per row are the first numbers of these.
  template <typename T>
  Tables<T> RandomTables() {
    Tables<T> tables{
        .table = std::vector<T>(kNumRows * dim_),
        .slots = {Random(kNumRows * dim_), Random(kNumRows * dim_)}};
    for (T& value : tables.table) {
      if constexpr (std::is_same_v<T, float>) {
        value = uniform_(random_);
      } else {
        value = RoundToNearest<T>(uniform_(random_));
      }
    }
    return tables;
  }

  int64_t size() const { return std::ssize(rows_); }
  PartitionOrder entries() const {
    return {rows_.data(), samples_.data(), gains_.data()};
  }

  // In two passes.
  template <typename T>
  Tables<T> Expected(const Rule& rule, const How& how, Tables<T> tables) const {
    const float* array = gradient_.data();
    const RowUpdate update{
        .table = std::span(tables.table),
        .slots = {tables.slots[0].data(), tables.slots[1].data()},
        .num_slots = rule.num_slots,
        .has_row_slots = rule.has_row_slots,
        .step = rule.choose_steps(how.hyperparameters).block,
        .hyperparameters = how.hyperparameters,
        .options = how.options,
        .rounding = how.rounding};
    RowStepper stepper(update, dim_, kNumRows);
    const SummedRows summed = SumRows(
        entries(), 0, size(),
        MakeActivationGradient(std::span(&array, 1), 1, kNumSamples, dim_),
        kNumRows, stepper.rows(), stepper.gradients());
    stepper.Add(summed.num_rows);
    stepper.Flush();
    return tables;
  }

  // By calls that end at these entries, each the first of a row or the end.
  template <typename T>
  Tables<T> Actual(const Rule& rule, const How& how, Tables<T> tables,
                   std::span<const int64_t> ends) const {
    const EntriesUpdate update{
        .gradient = {gradient_.data(), dim_},
        .table = std::span(tables.table),
        .slots = {tables.slots[0].data(), tables.slots[1].data()},
        .hyperparameters = how.hyperparameters,
        .options = how.options,
        .rounding = how.rounding};
    int64_t begin = 0;
    for (const int64_t end : ends) {
      Step(rule, how)(entries(), begin, end, update);
      begin = end;
    }
    return tables;
  }

  template <typename T>
  void ExpectTheBitsOfTwoPasses(const Rule& rule, const How& how) {
    const auto tables = RandomTables<T>();
    const auto expected = Expected(rule, how, tables);
    EXPECT_FALSE(expected == tables);
    EXPECT_TRUE(Actual(rule, how, tables, std::vector{size()}) == expected);
    std::vector<int64_t> row_starts;
    for (int64_t i = 1; i < size(); ++i) {
      if (rows_[i] != rows_[i - 1]) row_starts.push_back(i);
    }
    row_starts.push_back(size());
    EXPECT_TRUE(Actual(rule, how, tables, row_starts) == expected);
    if (how.options != RowOptions()) {
      const How without = {.hyperparameters = how.hyperparameters};
      EXPECT_FALSE(Expected(rule, without, tables) == expected);
    }
  }

  // Compares all rules that one pass serves; returns how many they are.
  template <typename T>
  int64_t NumRulesWithTheBitsOfTwoPasses(How how = {}) {
    int64_t num_rules = 0;
    for (const Rule& rule : Rules()) {
      if (!OnePassServes(rule, how.options, std::is_same_v<T, float>, dim_)) {
        continue;
      }
      SCOPED_TRACE(rule.name);
      int64_t num_steps = 0;
      for (const auto& hyperparameters : kHyperparameters) {
        how.hyperparameters = hyperparameters.data();
        if (Step(rule, how) == nullptr) continue;
        ++num_steps;
        ExpectTheBitsOfTwoPasses<T>(rule, how);
      }
      num_rules += num_steps > 0;
    }
    return num_rules;
  }

  const int64_t dim_ = GetParam();
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<float> uniform_{0.1f, 1.0f};
  std::vector<int32_t> rows_;
  std::vector<int32_t> samples_;
  std::vector<float> gains_;
  std::vector<float> gradient_;
};

TEST_P(StepEntriesTest, Float32HasTheBitsOfTwoPasses) {
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<float>(),
            dim_ <= 64 ? std::ssize(Rules()) : kNumShortRules);
}

TEST_P(StepEntriesTest, SixteenBitsHaveThoseOfTwoPasses) {
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Bfloat16>(), kNumShortRules);
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Float16>(), kNumShortRules);
}

TEST_P(StepEntriesTest, RoundingAtRandomHasTheBitsOfTwoPasses) {
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Bfloat16>({.rounding = kRounding}),
            kNumShortRules);
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Float16>({.rounding = kRounding}),
            kNumShortRules);
}

TEST_P(StepEntriesTest, OptionsHaveTheBitsOfTwoPasses) {
  for (const RowOptions& options : kOptions) {
    const int64_t num_without_row_slots = std::ssize(Rules()) - 1;
    EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<float>({.options = options}),
              dim_ > 64                 ? kNumShortRules
              : options.l2_weight_decay ? num_without_row_slots
                                        : std::ssize(Rules()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepEntriesTest,
                         testing::Values(8, 16, 32, 64, 128, 192));

std::vector<int64_t> DimsServed(std::string_view name,
                                const RowOptions& options = {},
                                bool has_floats = true) {
  const Rule rule = *FindRule(name);
  std::vector<int64_t> served;
  for (int64_t dim = 0; dim <= 256; ++dim) {
    if (OnePassServes(rule, options, has_floats, dim)) served.push_back(dim);
  }
  return served;
}

TEST(OnePassServesTest, AreNumbersOfColumnsThatLoopsAreMadeFor) {
  const std::vector<int64_t> all = {8, 16, 32, 64, 128, 192, 256};
  EXPECT_EQ(DimsServed("sgd"), all);
  EXPECT_EQ(DimsServed("sgd", {}, /*has_floats=*/false), all);
  for (const char* name : {"adam", "rowwise_adagrad"}) {
    EXPECT_EQ(DimsServed(name), (std::vector<int64_t>{8, 16, 32, 64}));
  }
}

TEST(OnePassServesTest, OptionsOfANumberAtATime) {
  for (const RowOptions& options : kOptions) {
    EXPECT_EQ(DimsServed("sgd", options), DimsServed("sgd"));
    EXPECT_TRUE(DimsServed("sgd", options, /*has_floats=*/false).empty());
    EXPECT_EQ(DimsServed("rowwise_adagrad", options).empty(),
              options.l2_weight_decay.has_value());
  }
  EXPECT_TRUE(DimsServed("sgd", {.max_gradient_norm = 1.0f}).empty());
  EXPECT_TRUE(DimsServed("sgd", {.skip_non_finite_gradients = true}).empty());
}

}  // namespace

}  // namespace jte::kernels
