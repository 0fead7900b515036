// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to a row once its gradient is known. The formulas of the rules
// are tested against those in Python, for every rule and option; here are the
// properties of the kernel, and the bits of a row by hand.

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"

namespace jte::kernels {

namespace {

constexpr float kLearningRate = 0.5f;

RowUpdate Sgd(TableValues table, const RowOptions& options = {}) {
  return {.table = table,
          .slots = {},
          .num_slots = 0,
          .has_row_slots = false,
          .step = FindRule("sgd")->choose_steps(&kLearningRate).block,
          .hyperparameters = &kLearningRate,
          .options = options,
          .rounding = {}};
}

// Steps row 1 of the table with the gradient.
void StepRow1(const RowUpdate& update, const std::vector<float>& gradient) {
  RowStepper stepper(update, std::ssize(gradient), /*max_rows=*/2);
  stepper.rows()[0] = 1;
  std::ranges::copy(gradient, stepper.gradients());
  stepper.Add(1);
  stepper.Flush();
}

struct OptionCase {
  std::string name;
  RowOptions options;
  std::vector<float> expected;
};

class RowOptionsTest : public testing::TestWithParam<OptionCase> {};

// Row (8, -16), gradient (3, 4), whose norm is 5; learning rate 0.5.
TEST_P(RowOptionsTest, ChangesTheStepOfItsRow) {
  std::vector<float> table = {1, 2, 8, -16, 5, 6};
  StepRow1(Sgd(std::span(table), GetParam().options), {3, 4});
  std::vector<float> expected = {1, 2, 0, 0, 5, 6};
  std::ranges::copy(GetParam().expected, expected.begin() + 2);
  EXPECT_EQ(table, expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, RowOptionsTest,
    testing::ValuesIn(std::vector<OptionCase>{
        {"None", {}, {6.5f, -18}},
        // g = (3, 4) / 2
        {"NormAboveLimit", {.max_gradient_norm = 2.5f}, {7.25f, -17}},
        {"NormBelowLimit", {.max_gradient_norm = 10.0f}, {6.5f, -18}},
        // g = (3 + 2, 4 - 4)
        {"L2", {.l2_weight_decay = 0.25f}, {5.5f, -16}},
        // g = (1.5 + 2, 2 - 4): the norm is limited before the decay is added
        {"NormAndL2",
         {.max_gradient_norm = 2.5f, .l2_weight_decay = 0.25f},
         {6.25f, -15}},
        // (6.5 - 1, -18 + 2): of the old row
        {"Decoupled", {.decoupled_weight_decay = 0.125f}, {5.5f, -16}},
        {"Limits", {.min_value = -17, .max_value = 6}, {6, -17}},
        // after the decay
        {"DecoupledAndLimits",
         {.decoupled_weight_decay = 0.125f, .min_value = -17, .max_value = 6},
         {5.5f, -16}},
    }),
    [](const auto& info) { return info.param.name; });

// Rows 0 to 4; those between have a gradient that is not finite. The blocks are
// of one, two and all rows, so that rows and whole blocks are left out.
TEST(StepRowsTest, RowsWithoutFiniteGradientAreLeftOut) {
  for (const int64_t dim : {1, 5, 16, 37}) {
    for (const float value : {INFINITY, -INFINITY, NAN, -NAN}) {
      for (const int64_t column : {int64_t{0}, dim - 1}) {
        for (const int64_t max_rows : {1, 2, 5}) {
          std::vector<float> table(5 * dim, 100.0f);
          // What is not a step is left out too: the row is beyond the limits.
          const RowUpdate update =
              Sgd(std::span(table), {.skip_non_finite_gradients = true,
                                     .decoupled_weight_decay = 0.25f,
                                     .max_value = 50.0f});
          RowStepper stepper(update, dim, max_rows);
          for (int64_t row = 0; row < 5; row += max_rows) {
            const int64_t count = std::min(max_rows, 5 - row);
            std::fill_n(stepper.gradients(), count * dim,
                        std::numeric_limits<float>::max());
            for (int64_t i = 0; i < count; ++i) {
              stepper.rows()[i] = static_cast<int32_t>(row + i);
              float* gradient = stepper.gradients() + i * dim;
              if ((row + i) % 2 == 1) gradient[column] = value;
              if ((row + i) == 4) std::fill_n(gradient, dim, 90.0f);
            }
            stepper.Add(count);
          }
          stepper.Flush();
          for (int64_t k = 0; k < 5 * dim; ++k) {
            const int64_t row = k / dim;
            // 100 - 0.5 * 90 - 0.25 * 100
            const float expected = row % 2 == 1 ? 100.0f : 30.0f;
            if (row % 2 == 1 || row == 4) {
              EXPECT_EQ(table[k], expected) << row;
            } else {
              EXPECT_LT(table[k], -1e38f) << row;
            }
          }
        }
      }
    }
  }
}

TEST(StepRowsTest, ANaNGradientStaysVisible) {
  std::vector<float> table = {1, 2, 8, -16};
  StepRow1(
      Sgd(std::span(table),
          {.max_gradient_norm = 1.0f, .min_value = -1.0f, .max_value = 1.0f}),
      {NAN, 4});
  EXPECT_TRUE(std::isnan(table[2]));
}

TEST(StepRowsTest, RoundsOnceToTheTableType) {
  // 1 - 0.5 * g: in units of 2^-8 below 1, 0.6 of one to nearest.
  std::vector<Bfloat16> table(4, RoundToNearest<Bfloat16>(1.0f));
  StepRow1(Sgd(std::span(table)), {2 * 0.6f / 256, 2 * 0.4f / 256});
  EXPECT_EQ(ToFloat(table[0]), 1.0f);
  EXPECT_EQ(ToFloat(table[2]), 1.0f - 1.0f / 256);
  EXPECT_EQ(ToFloat(table[3]), 1.0f);
}

// The same rows of one table on one device, and on the second of two.
TEST(StepRowsTest, RandomBitsBelongToThePlaceInTheWholeTable) {
  // Two shards on each of two devices, three rows of 40 columns each.
  constexpr int64_t kDim = 40;
  const auto step = [](int64_t first_shard, int64_t shards, int64_t row) {
    std::vector<Bfloat16> table(shards * 3 * kDim,
                                RoundToNearest<Bfloat16>(1.0f));
    RowUpdate update = Sgd(std::span(table));
    update.rounding = {.seed = 7,
                       .num_shards = 4,
                       .first_shard = first_shard,
                       .rows_per_shard = 3};
    RowStepper stepper(update, kDim, /*max_rows=*/1);
    stepper.rows()[0] = static_cast<int32_t>(row);
    std::fill_n(stepper.gradients(), kDim, 1.0f / 256);
    stepper.Add(1);
    stepper.Flush();
    std::vector<float> values;
    for (int64_t d = 0; d < kDim; ++d) {
      values.push_back(ToFloat(table[row * kDim + d]));
    }
    return values;
  };
  // Row 1 of shard 3.
  const std::vector<float> on_one = step(0, 4, 3 * 3 + 1);
  EXPECT_EQ(step(2, 2, 1 * 3 + 1), on_one);
  // Half a unit: some up and some down, and others in another row.
  EXPECT_GT(std::ranges::count(on_one, 1.0f), 0);
  EXPECT_GT(std::ranges::count(on_one, 1.0f - 1.0f / 256), 0);
  EXPECT_NE(step(0, 4, 3 * 3 + 2), on_one);
}

// A rule that is given the same element in any column does the same to it,
// whichever vector or remainder the column is in; and rows in one block or in
// several.
TEST(StepRowsTest, EveryRuleTreatsAllColumnsAlike) {
  constexpr int64_t kNumRows = 5;
  for (const Rule& rule : Rules()) {
    const std::vector<float> hyperparameters = {0.3f, 0.7f, 0.6f,
                                                0.2f, 0.1f, 1.0f};
    for (const int64_t dim : {1, 3, 4, 15, 16, 17, 37, 64}) {
      for (const int64_t max_rows : {1, 2, 5}) {
        std::vector<float> table(kNumRows * dim, 0.25f);
        std::vector<std::vector<float>> slots(
            2, std::vector<float>(
                   rule.has_row_slots ? kNumRows : kNumRows * dim, 0.5f));
        const RowUpdate update{
            .table = std::span(table),
            .slots = {slots[0].data(), slots[1].data()},
            .num_slots = rule.num_slots,
            .has_row_slots = rule.has_row_slots,
            .step = rule.choose_steps(hyperparameters.data()).block,
            .hyperparameters = hyperparameters.data(),
            .options = {},
            .rounding = {}};
        RowStepper stepper(update, dim, max_rows);
        for (int64_t row = 0; row < kNumRows;) {
          const int64_t count = std::min(max_rows, kNumRows - row);
          for (int64_t i = 0; i < count; ++i) {
            stepper.rows()[i] = static_cast<int32_t>(row + i);
          }
          std::fill_n(stepper.gradients(), count * dim, 0.75f);
          stepper.Add(count);
          row += count;
        }
        stepper.Flush();
        EXPECT_NE(table[0], 0.25f) << rule.name;
        for (const auto& values : {table, slots[0], slots[1]}) {
          EXPECT_EQ(values, std::vector<float>(values.size(), values[0]))
              << rule.name << " with " << dim << " columns";
        }
      }
    }
  }
}

// A table of two columns in a stack of three.
TEST(StepRowsTest, RowwiseAdagradHasOneAccumulatorPerRow) {
  const auto rule = FindRule("rowwise_adagrad");
  std::vector<float> table = {9, 9, 0, 1, 1, 0};
  std::vector<float> accumulator = {9, 3.5f};
  const std::vector<float> hyperparameters = {0.5f, 1.0f, 2.0f};
  StepRow1({.table = std::span(table),
            .slots = {accumulator.data()},
            .num_slots = 1,
            .has_row_slots = true,
            .step = rule->choose_steps(hyperparameters.data()).block,
            .hyperparameters = hyperparameters.data(),
            .options = {},
            .rounding = {}},
           {3, 4, 0});
  // a = 3.5 + 25 / 2 = 16;  w = 1 - 0.5 * g / (4 + 1)
  EXPECT_EQ(accumulator, (std::vector<float>{9, 16}));
  EXPECT_EQ(table,
            (std::vector<float>{9, 9, 0, 1 - 1.5f / 5, 1 - 2.0f / 5, 0}));
}

}  // namespace

}  // namespace jte::kernels
