// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/planner.h"

#include <algorithm>
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Table MakeTable(std::string name, int64_t vocabulary_size,
                int64_t embedding_dim) {
  Table table;
  table.name = name;
  table.vocabulary_size = vocabulary_size;
  table.embedding_dim = embedding_dim;
  table.combiner = "sum";
  table.optimizer = "SGD";
  table.stack_name = name;
  return table;
}

// a: 33 x 6, b: 100 x 8, c: 20 x 5 on 2 devices x 4 SparseCores, with one
// feature each, of 16, 16 and 32 samples.
Model ThreeTables() {
  Model model;
  model.topology = {.global_device_count = 2, .num_sc_per_device = 4};
  model.tables = {MakeTable("a", 33, 6), MakeTable("b", 100, 8),
                  MakeTable("c", 20, 5)};
  model.features = {{"fa", 0, 16}, {"fb", 1, 16}, {"fc", 2, 32}};
  return model;
}

StackTablesOptions Named(std::vector<std::string> table_names,
                         std::string stack_name = "s") {
  StackTablesOptions options;
  options.table_names = std::move(table_names);
  options.stack_name = std::move(stack_name);
  return options;
}

// So many that a planner that looks at all tables for each table does not
// finish within a test; with ASan, which is slow, a quarter is as many.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kNumTables = 50'000;
#else
constexpr int kNumTables = 200'000;
#endif

// Tables of 8 x 8 values with one sample each.
Model ManyTables() {
  Model model;
  model.topology = {.global_device_count = 1, .num_sc_per_device = 1};
  for (int t = 0; t < kNumTables; ++t) {
    model.tables.push_back(MakeTable("t" + std::to_string(t), 8, 8));
    model.features.push_back({"f" + std::to_string(t), t, 1});
  }
  return model;
}

std::vector<std::string> StackNames(const Plan& plan) {
  std::vector<std::string> names;
  for (const Stack& stack : plan.stacks) names.push_back(stack.name);
  return names;
}

// row_offset, col_offset, col_shift by feature.
std::vector<std::vector<int64_t>> Transforms(const Stack& stack) {
  std::vector<std::vector<int64_t>> result;
  for (const FeaturePlacement& f : stack.features) {
    result.push_back({f.feature, f.transform.row_offset, f.transform.col_offset,
                      f.transform.col_shift});
  }
  return result;
}

// -- stack_tables -----------------------------------------------------------

TEST(PlanStackTablesTest, PlacesTablesInTheGivenOrder) {
  const Result<Plan> plan =
      PlanStackTables(ThreeTables(), Named({"c", "a", "b"}));
  ASSERT_TRUE(plan.has_value());
  const Stack& stack = plan->stacks.front();
  EXPECT_EQ(stack.vocabulary_size, 64 + 64 + 128);
  EXPECT_EQ(stack.embedding_dim, 8);
  EXPECT_EQ(stack.num_samples, 16 + 16 + 32);
  EXPECT_THAT(stack.tables, ElementsAre(TablePlacement{2, 64, 0, 0},
                                        TablePlacement{0, 64, 8, 4},
                                        TablePlacement{1, 128, 16, 0}));
}

TEST(PlanStackTablesTest, PlacesFeaturesInFlattenedOrder) {
  const Result<Plan> plan =
      PlanStackTables(ThreeTables(), Named({"c", "a", "b"}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(Transforms(plan->stacks.front()),
              ElementsAre(ElementsAre(0, 0, 64, 4), ElementsAre(1, 16, 128, 0),
                          ElementsAre(2, 32, 0, 0)));
}

TEST(PlanStackTablesTest, RotationIsAnOption) {
  for (const int64_t rotation : {0, 1, 3}) {
    StackTablesOptions options = Named({"a", "b", "c"});
    options.rotation = rotation;
    const Result<Plan> plan = PlanStackTables(ThreeTables(), options);
    ASSERT_TRUE(plan.has_value());
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(plan->stacks.front().tables[i].shard_rotation, i * rotation);
    }
  }
}

TEST(PlanStackTablesTest, LeavesOtherTablesOut) {
  const Result<Plan> plan = PlanStackTables(ThreeTables(), Named({"a", "b"}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->stacks.front().num_samples, 32);
  EXPECT_EQ(plan->stacks.front().tables.size(), 2);
  EXPECT_EQ(plan->stacks.front().features.size(), 2);
}

TEST(PlanStackTablesTest, FeaturesOfASharedTableFollowEachOther) {
  Model model;
  model.topology = {.global_device_count = 2, .num_sc_per_device = 2};
  model.tables = {MakeTable("a", 33, 8), MakeTable("b", 33, 8)};
  model.tables[1].vocabulary_size = 100;  // 128 rows, 32 in each of 4 shards
  model.features = {{"f1", 0, 32}, {"f2", 0, 16}, {"f3", 1, 16}};
  const Result<Plan> plan = PlanStackTables(model, Named({"b", "a"}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(Transforms(plan->stacks.front()),
              ElementsAre(ElementsAre(0, 0, 128, 2), ElementsAre(1, 32, 128, 2),
                          ElementsAre(2, 48, 0, 0)));
}

TEST(PlanStackTablesTest, ExcessPaddingIsAWarningOrAnError) {
  Model model = ThreeTables();
  model.tables[1].embedding_dim = 12;
  StackTablesOptions options = Named({"a", "b"});
  const Result<Plan> plan = PlanStackTables(model, options);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->stacks.front().embedding_dim, 16);
  // 64 rows of a, each 8 columns wider than alone.
  EXPECT_THAT(plan->warnings, ElementsAre(HasSubstr("adds 512 values")));

  options.fail_on_excess_padding = true;
  const Result<Plan> refused = PlanStackTables(model, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("adds 512 values"));
}

TEST(PlanStackTablesTest, TableStackedAloneCanBeStackedAgain) {
  Model model = ThreeTables();
  model.tables[0].is_stacked = true;
  EXPECT_TRUE(PlanStackTables(model, Named({"a", "b"})).has_value());
  // Also under its own name, which no other table has then.
  EXPECT_TRUE(PlanStackTables(model, Named({"a", "b"}, "a")).has_value());
}

TEST(PlanStackTablesTest, TakesTheLargestBatch) {
  Model model = ThreeTables();
  model.features[0].num_samples = 100'000'000;
  model.features[1].num_samples = 34'217'726;
  EXPECT_TRUE(PlanStackTables(model, Named({"a", "b"})).has_value());
}

TEST(PlanStackTablesTest, TakesTheNameOfATableThatIsInAnotherStack) {
  Model model = ThreeTables();
  model.tables[2].is_stacked = true;
  model.tables[2].stack_name = "c_d";
  EXPECT_TRUE(PlanStackTables(model, Named({"a", "b"}, "c")).has_value());
}

TEST(PlanStackTablesTest, ChecksInAFixedOrder) {
  Model model = ThreeTables();
  StackTablesOptions options = Named({"a", "a", "b"});
  model.tables[1].stack_name = "old";
  model.tables[2].stack_name = "s";
  model.tables[2].is_stacked = true;
  model.tables[1].optimizer_id = 1;
  model.tables[1].combiner = "mean";
  model.tables[1].quantization = Quantization{-1, 1, 256};
  const auto message = [&model, &options] {
    return PlanStackTables(model, options).error().message;
  };
  EXPECT_THAT(message(), HasSubstr("already stacked"));
  model.tables[1].stack_name = "b";
  EXPECT_THAT(message(), HasSubstr("already used"));
  model.tables[2].stack_name = "c";
  EXPECT_THAT(message(), HasSubstr("repeated"));
  options.table_names = {"a", "b"};
  EXPECT_THAT(message(), HasSubstr("different optimizers"));
  model.tables[1].optimizer_id = 0;
  EXPECT_THAT(message(), HasSubstr("different combiners"));
  model.tables[1].combiner = "sum";
  EXPECT_THAT(message(), HasSubstr("different quantization configs"));
}

struct InvalidCase {
  std::string name;
  std::function<void(Model&, StackTablesOptions&)> change;
  ErrorCode code;
  std::string message;
};

class PlanStackTablesErrorTest : public testing::TestWithParam<InvalidCase> {};

// The baseline that every case changes in one way.
TEST(PlanStackTablesErrorTest, BaselineIsValid) {
  EXPECT_TRUE(PlanStackTables(ThreeTables(), Named({"a", "b"})).has_value());
}

TEST_P(PlanStackTablesErrorTest, SaysWhatIsWrong) {
  Model model = ThreeTables();
  StackTablesOptions options = Named({"a", "b"});
  GetParam().change(model, options);
  const Result<Plan> plan = PlanStackTables(model, options);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, GetParam().code);
  EXPECT_THAT(plan.error().message, HasSubstr(GetParam().message));
}

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Cases, PlanStackTablesErrorTest,
    testing::Values(
        InvalidCase{
            "unknown_table",
            [](Model&, StackTablesOptions& o) { o.table_names[1] = "z"; },
            ErrorCode::kNotFound, "no feature has a table called z"},
        InvalidCase{"no_tables",
                    [](Model&, StackTablesOptions& o) { o.table_names = {}; },
                    kInvalid, "Stack s has no tables"},
        InvalidCase{"already_stacked",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].stack_name = "old";
                      m.tables[1].is_stacked = true;
                    },
                    kInvalid, "Table b is already stacked in group old"},
        InvalidCase{"name_in_use",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[2].stack_name = "s";
                      m.tables[2].is_stacked = true;
                    },
                    kInvalid,
                    "Stack name s cannot be used since it's already used. "
                    "Table c is in that stack"},
        InvalidCase{
            "repeated_table",
            [](Model&, StackTablesOptions& o) { o.table_names[1] = "a"; },
            kInvalid, "Table a is repeated in group s"},
        InvalidCase{"different_optimizers",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].optimizer_id = 1;
                      m.tables[1].optimizer = "Adam";
                    },
                    kInvalid,
                    "Tables a and b have different optimizers: SGD and Adam"},
        InvalidCase{"different_combiners",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].combiner = "mean";
                    },
                    kInvalid,
                    "Tables a and b have different combiners: sum and mean"},
        InvalidCase{"different_quantization",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].quantization = Quantization{-1, 1, 256};
                    },
                    kInvalid,
                    "have different quantization configs: none and 256 buckets "
                    "in [-1, 1]"},
        InvalidCase{"no_devices",
                    [](Model& m, StackTablesOptions&) {
                      m.topology.global_device_count = 0;
                    },
                    kInvalid, "global_device_count must be positive, got 0"},
        InvalidCase{"no_sparsecores",
                    [](Model& m, StackTablesOptions&) {
                      m.topology.num_sc_per_device = -1;
                    },
                    kInvalid, "num_sc_per_device must be positive, got -1"},
        InvalidCase{"too_many_shards",
                    [](Model& m, StackTablesOptions&) {
                      m.topology.global_device_count = 100'000'000;
                    },
                    kInvalid, "more shards than a table can have"},
        InvalidCase{"no_rows",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].vocabulary_size = 0;
                    },
                    kInvalid, "Table 'b': vocabulary_size must be in"},
        InvalidCase{"no_columns",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].embedding_dim = -3;
                    },
                    kInvalid, "Table 'b': embedding_dim must be in"},
        InvalidCase{"columns_beyond_int32_with_padding",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].embedding_dim = 2'147'483'641;
                    },
                    kInvalid, "Table 'b': embedding_dim must be in [1, 214748"},
        InvalidCase{"rows_of_all_tables_beyond_int32",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[0].vocabulary_size = 1'500'000'000;
                      m.tables[1].vocabulary_size = 1'500'000'000;
                    },
                    kInvalid, "Stack 's' would have 3000000000 rows"},
        InvalidCase{"samples_beyond_26_bits",
                    [](Model& m, StackTablesOptions&) {
                      m.features[0].num_samples = 100'000'000;
                      m.features[1].num_samples = 34'217'727;
                    },
                    kInvalid,
                    "Stack 's' would have 67108864 samples per device "
                    "(134217727 on 2 devices), and can have at most 67108863"},
        InvalidCase{"name_of_another_table",
                    [](Model&, StackTablesOptions& o) { o.stack_name = "c"; },
                    kInvalid,
                    "Stack name c cannot be used: it is the name of a table"},
        InvalidCase{"rows_beyond_int32_with_padding",
                    [](Model& m, StackTablesOptions&) {
                      m.tables[1].vocabulary_size = 2'147'483'647;
                    },
                    kInvalid,
                    "Stack 's' would have 2147483712 rows, padded for 8"},
        InvalidCase{
            "features_of_one_name",
            [](Model& m, StackTablesOptions&) { m.features[1].name = "fa"; },
            kInvalid, "Feature spec fa is already defined"},
        InvalidCase{
            "tables_of_one_name",
            [](Model& m, StackTablesOptions&) { m.tables[2].name = "a"; },
            kInvalid, "Two tables are called 'a'"},
        InvalidCase{
            "feature_without_table",
            [](Model& m, StackTablesOptions&) { m.features[1].table = 3; },
            kInvalid, "Feature 'fb' names table 3 of 3"},
        InvalidCase{"negative_samples",
                    [](Model& m, StackTablesOptions&) {
                      m.features[1].num_samples = -8;
                    },
                    kInvalid, "Feature 'fb': the number of samples"}),
    [](const auto& info) { return info.param.name; });

// -- auto_stack_tables --------------------------------------------------------

TEST(PlanAutoStackTest, StacksAlikeTablesInTheOrderOfTheModel) {
  const Result<Plan> plan = PlanAutoStack(ThreeTables(), {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan), ElementsAre("a_b_c"));
  EXPECT_THAT(
      plan->stacks.front().tables,
      ElementsAre(TablePlacement{0, 64, 0, 0}, TablePlacement{1, 128, 8, 4},
                  TablePlacement{2, 64, 24, 0}));
}

TEST(PlanAutoStackTest, GroupsByWidthOptimizerCombinerAndQuantization) {
  Model model;
  model.topology = {.global_device_count = 2, .num_sc_per_device = 4};
  for (const char* name : {"t1", "t2", "t3", "t4", "t5", "t6", "t7"}) {
    model.features.push_back(
        {"f_" + std::string(name), std::ssize(model.tables), 16});
    model.tables.push_back(MakeTable(name, 10, 8));
  }
  model.tables[1].embedding_dim = 16;
  model.tables[2].optimizer_id = 1;
  model.tables[3].combiner = "mean";
  model.tables[4].embedding_dim = 7;
  model.tables[5].quantization = Quantization{-1, 1, 256};
  model.tables[6].quantization = Quantization{-1, 1, 256};
  model.tables[6].embedding_dim = 1;
  const Result<Plan> plan = PlanAutoStack(model, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan),
              ElementsAre("t1_t5", "t2", "t3", "t4", "t6_t7"));
}

TEST(PlanAutoStackTest, SplitsAtTheLimitOfActivationMemory) {
  Model model = ThreeTables();  // 64, 64 and 128 bytes per SparseCore
  const Result<Plan> plan =
      PlanAutoStack(model, {.activation_mem_bytes_limit = 128});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan), ElementsAre("a_b", "c"));

  const Result<Plan> alone =
      PlanAutoStack(model, {.activation_mem_bytes_limit = 0});
  ASSERT_TRUE(alone.has_value());
  EXPECT_THAT(StackNames(*alone), ElementsAre("a", "b", "c"));
}

TEST(PlanAutoStackTest, SplitsWhereRowsCouldNotBeNumbered) {
  Model model = ThreeTables();
  model.tables[0].vocabulary_size = 1'500'000'000;
  model.tables[1].vocabulary_size = 1'500'000'000;
  const Result<Plan> plan = PlanAutoStack(model, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan), ElementsAre("a_c", "b"));
}

TEST(PlanAutoStackTest, RefusesANegativeLimit) {
  const Result<Plan> plan =
      PlanAutoStack(ThreeTables(), {.activation_mem_bytes_limit = -1});
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message,
              HasSubstr("activation_mem_bytes_limit must not be negative"));
}

TEST(PlanAutoStackTest, RefusesTablesThatAreInAStackWithOthers) {
  Model model = ThreeTables();
  model.tables[2].stack_name = "c_d";
  model.tables[2].is_stacked = true;
  const Result<Plan> plan = PlanAutoStack(model, {});
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message,
              HasSubstr("Table c is already stacked in group c_d"));
}

TEST(PlanAutoStackTest, RefusesTwoStacksOfOneName) {
  Model model = ThreeTables();
  model.tables[2] = MakeTable("a_b", 20, 100);
  const Result<Plan> plan = PlanAutoStack(model, {});
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message,
              HasSubstr("Two stacks would be called 'a_b'"));
}

// -- prepare ------------------------------------------------------------------

TEST(PlanStackAloneTest, FeaturesAreInTheOrderOfTheirNames) {
  Model model;
  model.topology = {.global_device_count = 2, .num_sc_per_device = 4};
  model.tables = {MakeTable("t0", 33, 6), MakeTable("t1", 10, 12)};
  model.features = {{"fb", 0, 16}, {"fc", 1, 16}, {"fa", 0, 32}};
  const Result<Plan> plan = PlanStackAlone(model);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan), ElementsAre("t0", "t1"));
  EXPECT_THAT(plan->stacks[0].tables, ElementsAre(TablePlacement{0, 64, 0, 0}));
  EXPECT_EQ(plan->stacks[0].num_samples, 48);
  EXPECT_THAT(Transforms(plan->stacks[0]),
              ElementsAre(ElementsAre(2, 0, 0, 0), ElementsAre(0, 32, 0, 0)));
  EXPECT_EQ(plan->stacks[1].embedding_dim, 16);
}

TEST(PlanStackAloneTest, LeavesStackedTablesOut) {
  Model model = ThreeTables();
  for (Table& table : model.tables) table.is_stacked = true;
  model.tables[1].is_stacked = false;
  const Result<Plan> plan = PlanStackAlone(model);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(StackNames(*plan), ElementsAre("b"));

  model.tables[1].is_stacked = true;
  const Result<Plan> nothing = PlanStackAlone(model);
  ASSERT_TRUE(nothing.has_value());
  EXPECT_THAT(nothing->stacks, IsEmpty());
}

TEST(PlanStackAloneTest, RefusesATableThatNamesAStackItIsNotIn) {
  Model model = ThreeTables();
  model.tables[1].stack_name = "old";
  const Result<Plan> plan = PlanStackAlone(model);
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message,
              HasSubstr("Invalid stacking: table b has no stack"));
}

TEST(PlanStackAloneTest, RefusesTheNameOfAnotherStack) {
  Model model = ThreeTables();
  model.tables[0].is_stacked = true;
  model.tables[0].stack_name = "b";
  const Result<Plan> plan = PlanStackAlone(model);
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message, HasSubstr("already used"));
}

// One sample takes 8 * 4 bytes.
TEST(ManyTablesTest, AlikeTablesShareStacks) {
  const Model model = ManyTables();
  const Plan plan =
      PlanAutoStack(model, {.activation_mem_bytes_limit = 64}).value();
  ASSERT_EQ(plan.stacks.size(), model.tables.size() / 2);
  EXPECT_EQ(plan.stacks.back().name, "t" + std::to_string(kNumTables - 2) +
                                         "_t" + std::to_string(kNumTables - 1));
}

TEST(ManyTablesTest, TablesThatAreNotAlikeAreApart) {
  Model model = ManyTables();
  for (size_t t = 0; t < model.tables.size(); ++t) {
    model.tables[t].optimizer_id = t;
  }
  const Plan plan = PlanAutoStack(model, {}).value();
  EXPECT_EQ(plan.stacks.size(), model.tables.size());
}

TEST(ManyTablesTest, EachAlone) {
  const Model model = ManyTables();
  const Plan plan = PlanStackAlone(model).value();
  ASSERT_EQ(plan.stacks.size(), model.tables.size());
  EXPECT_EQ(plan.stacks.back().features.front().feature, kNumTables - 1);
}

TEST(ManyTablesTest, AllTogether) {
  const Model model = ManyTables();
  StackTablesOptions options = Named({});
  for (const Table& table : model.tables) {
    options.table_names.push_back(table.name);
  }
  const Plan plan = PlanStackTables(model, options).value();
  ASSERT_EQ(plan.stacks.size(), 1);
  EXPECT_EQ(plan.stacks[0].features.back().transform.row_offset,
            kNumTables - 1);
}

}  // namespace
}  // namespace jte::planner
