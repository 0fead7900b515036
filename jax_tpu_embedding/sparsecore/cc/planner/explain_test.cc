// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/explain.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::planner {
namespace {

using ::testing::HasSubstr;

Table MakeTable(std::string name, int64_t vocabulary_size) {
  Table table;
  table.name = name;
  table.vocabulary_size = vocabulary_size;
  table.embedding_dim = 8;
  table.combiner = "sum";
  table.optimizer = "SGD";
  table.stack_name = name;
  table.is_stacked = true;
  return table;
}

// Tables a and b on 2 devices x 4 SparseCores, alike and each in a stack of its
// own, with features of 16 and 32 samples: 2 and 4 of them per SparseCore.
struct TwoStacks {
  Model model{
      .topology = {.global_device_count = 2, .num_sc_per_device = 4},
      .tables = {MakeTable("a", 33), MakeTable("b", 100)},
      .features = {{"fa", 0, 16}, {"fb", 1, 32}},
  };
  std::vector<StackQuestion> stacks = {{"a", 1000}, {"b", 1000}};
};

TEST(ExplainStacksTest, CountsActivationsOfOneSparseCore) {
  const TwoStacks setup;
  const auto reports = ExplainStacks(setup.model, setup.stacks);
  ASSERT_TRUE(reports.has_value());
  ASSERT_EQ(reports->size(), 2);
  EXPECT_EQ((*reports)[0].stack_name, "a");
  EXPECT_EQ((*reports)[0].activation_bytes_per_sc, 2 * 8 * 4);
  EXPECT_EQ((*reports)[1].stack_name, "b");
  EXPECT_EQ((*reports)[1].activation_bytes_per_sc, 4 * 8 * 4);
}

TEST(ExplainStacksTest, AddsTheTablesOfAStack) {
  TwoStacks setup;
  setup.model.tables[0].stack_name = "s";
  setup.model.tables[1].stack_name = "s";
  setup.stacks = {{"s", 1000}};
  const auto reports = ExplainStacks(setup.model, setup.stacks);
  ASSERT_TRUE(reports.has_value());
  EXPECT_EQ(reports->front().activation_bytes_per_sc, 6 * 8 * 4);
  EXPECT_EQ(reports->front().why_apart, "All tables are in it.");
}

struct Case {
  std::string name;
  std::function<void(TwoStacks&)> change;
  std::string why_a_is_apart;
};

class WhyApartTest : public testing::TestWithParam<Case> {};

TEST_P(WhyApartTest, SaysWhatKeepsTheFirstStackFromTheOther) {
  TwoStacks setup;
  GetParam().change(setup);
  const auto reports = ExplainStacks(setup.model, setup.stacks);
  ASSERT_TRUE(reports.has_value()) << reports.error().message;
  EXPECT_EQ(reports->front().why_apart, GetParam().why_a_is_apart);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WhyApartTest,
    testing::Values(
        Case{"nothing", [](TwoStacks&) {},
             "It could share a stack with 'b': nobody asked for that, see "
             "auto_stack_tables."},
        Case{"alone",
             [](TwoStacks& s) {
               s.model.tables.pop_back();
               s.model.features.pop_back();
               s.stacks.pop_back();
             },
             "It is the only table."},
        Case{"width", [](TwoStacks& s) { s.model.tables[1].embedding_dim = 9; },
             "No other stack is alike. The closest, 'b', has 16 columns "
             "instead of 8."},
        Case{"optimizer",
             [](TwoStacks& s) {
               s.model.tables[1].optimizer_id = 1;
               s.model.tables[1].optimizer = "Adam";
             },
             "No other stack is alike. The closest, 'b', has optimizer Adam "
             "instead of SGD."},
        Case{"combiner_and_quantization",
             [](TwoStacks& s) {
               s.model.tables[1].combiner = "mean";
               s.model.tables[1].quantization = Quantization{-1, 1, 256};
             },
             "No other stack is alike. The closest, 'b', has combiner mean "
             "instead of sum, quantization 256 buckets in [-1, 1] instead of "
             "none."},
        Case{"activations",
             [](TwoStacks& s) { s.stacks[0].activation_mem_bytes_limit = 191; },
             "With 'b' its activations would take 192 bytes per SparseCore, "
             "above the limit of 191."},
        Case{"activations_just_fit",
             [](TwoStacks& s) { s.stacks[0].activation_mem_bytes_limit = 192; },
             "It could share a stack with 'b': nobody asked for that, see "
             "auto_stack_tables."},
        Case{"rows",
             [](TwoStacks& s) {
               s.model.tables[1].vocabulary_size = 2'147'483'584;
             },
             "With 'b' it would have 2147483648 rows, and ids are int32."},
        Case{"closest_of_several",
             [](TwoStacks& s) {
               s.model.tables[1].combiner = "mean";
               s.model.tables[1].embedding_dim = 9;
               s.model.tables.push_back(MakeTable("c", 5));
               s.model.tables[2].embedding_dim = 17;
               s.stacks.push_back({"c", 1000});
             },
             "No other stack is alike. The closest, 'c', has 24 columns "
             "instead of 8."}),
    [](const auto& info) { return info.param.name; });

TEST(ExplainStacksTest, RefusesTablesWithoutAStack) {
  TwoStacks setup;
  setup.stacks.pop_back();
  EXPECT_THAT(ExplainStacks(setup.model, setup.stacks).error().message,
              HasSubstr("Table 'b' is in no stack"));
  setup = {};
  setup.model.tables[1].is_stacked = false;
  EXPECT_THAT(ExplainStacks(setup.model, setup.stacks).error().message,
              HasSubstr("Table 'b' is in no stack"));
}

TEST(ExplainStacksTest, RefusesStacksWithoutATable) {
  TwoStacks setup;
  setup.stacks.push_back({"c", 1000});
  EXPECT_THAT(ExplainStacks(setup.model, setup.stacks).error().message,
              HasSubstr("Stack 'c' has no tables"));
}

TEST(ExplainStacksTest, RefusesMoreStacksThanItCanCompare) {
  const std::vector<StackQuestion> stacks(20'001);
  EXPECT_THAT(ExplainStacks({}, stacks).error().message,
              HasSubstr("Cannot compare 20001 stacks"));
}

TEST(ExplainStacksTest, RefusesAnInvalidModel) {
  TwoStacks setup;
  setup.model.topology.num_sc_per_device = 0;
  EXPECT_FALSE(ExplainStacks(setup.model, setup.stacks).has_value());
}

}  // namespace
}  // namespace jte::planner
