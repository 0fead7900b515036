// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_entries.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

namespace {

constexpr int64_t kNumRows = 300;
constexpr int64_t kNumSamples = 50;
// With the special powers of rules that have some: -1/2, 1/2.
constexpr float kHyperparameters[] = {0.3f, -0.5f, 0.6f, 0.2f, 2.0f, 1.0f};

// SGD, Adagrad, momentum and Lion, which do little.
constexpr int64_t kNumShortRules = 4;

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
  Tables<T> Expected(const Rule& rule, Tables<T> tables,
                     const std::optional<StochasticRounding>& rounding) const {
    const float* array = gradient_.data();
    const RowUpdate update{
        .table = std::span(tables.table),
        .slots = {tables.slots[0].data(), tables.slots[1].data()},
        .num_slots = rule.num_slots,
        .has_row_slots = rule.has_row_slots,
        .step = rule.choose_steps(kHyperparameters).block,
        .hyperparameters = kHyperparameters,
        .options = {},
        .rounding = rounding};
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
  Tables<T> Actual(const Rule& rule, Tables<T> tables,
                   const std::optional<StochasticRounding>& rounding,
                   std::span<const int64_t> ends) const {
    const EntriesUpdate update{
        .gradient = {gradient_.data(), dim_},
        .table = std::span(tables.table),
        .slots = {tables.slots[0].data(), tables.slots[1].data()},
        .hyperparameters = kHyperparameters,
        .rounding = rounding};
    int64_t begin = 0;
    for (const int64_t end : ends) {
      rule.choose_steps(kHyperparameters)
          .entries(entries(), begin, end, update);
      begin = end;
    }
    return tables;
  }

  // Compares all rules that one pass serves; returns how many they are.
  template <typename T>
  int64_t NumRulesWithTheBitsOfTwoPasses(
      const std::optional<StochasticRounding>& rounding = {}) {
    std::vector<int64_t> row_starts;
    for (int64_t i = 1; i < size(); ++i) {
      if (rows_[i] != rows_[i - 1]) row_starts.push_back(i);
    }
    row_starts.push_back(size());
    int64_t num_rules = 0;
    for (const Rule& rule : Rules()) {
      if (!OnePassServes(rule, std::is_same_v<T, float>, dim_)) continue;
      SCOPED_TRACE(rule.name);
      ++num_rules;
      const auto tables = RandomTables<T>();
      const auto expected = Expected(rule, tables, rounding);
      EXPECT_FALSE(expected == tables);
      EXPECT_TRUE(Actual(rule, tables, rounding, std::vector{size()}) ==
                  expected);
      EXPECT_TRUE(Actual(rule, tables, rounding, row_starts) == expected);
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
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Bfloat16>(kRounding),
            kNumShortRules);
  EXPECT_EQ(NumRulesWithTheBitsOfTwoPasses<Float16>(kRounding), kNumShortRules);
}

INSTANTIATE_TEST_SUITE_P(All, StepEntriesTest,
                         testing::Values(8, 16, 32, 64, 128, 192));

std::vector<int64_t> DimsServed(const Rule& rule) {
  std::vector<int64_t> served;
  for (int64_t dim = 0; dim <= 256; ++dim) {
    if (OnePassServes(rule, /*has_floats=*/true, dim)) served.push_back(dim);
  }
  return served;
}

TEST(OnePassServesTest, AreNumbersOfColumnsThatLoopsAreMadeFor) {
  EXPECT_EQ(DimsServed(*FindRule("sgd")),
            (std::vector<int64_t>{8, 16, 32, 64, 128, 192, 256}));
  for (const char* name : {"adam", "rowwise_adagrad"}) {
    EXPECT_EQ(DimsServed(*FindRule(name)),
              (std::vector<int64_t>{8, 16, 32, 64}));
  }
}

}  // namespace

}  // namespace jte::kernels
