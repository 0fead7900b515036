// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/plan_proto.h"

#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/lib/proto/planner.pb.h"

namespace jte::planner {
namespace {

using ::testing::HasSubstr;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

// Two tables on one device with two SparseCores.
proto::PlanRequest Request(const std::string& strategy) {
  return Parse<proto::PlanRequest>(
      R"pb(
        global_device_count: 1
        num_sc_per_device: 2
        tables {
          name: "a"
          vocabulary_size: 10
          embedding_dim: 2
          combiner: "sum"
          stack_name: "a"
        }
        tables {
          name: "b"
          vocabulary_size: 17
          embedding_dim: 3
          combiner: "sum"
          stack_name: "b"
        }
        features { name: "fa" table_name: "a" num_samples: 16 }
        features { name: "fb" table_name: "b" num_samples: 16 })pb" +
      strategy);
}

TEST(MakePlanTest, AnswersWithTheStacks) {
  const Result<proto::Plan> plan =
      MakePlan(Request("auto_stack { activation_mem_bytes_limit: 1024 }"));
  ASSERT_TRUE(plan.has_value());
  const proto::Plan expected = Parse<proto::Plan>(R"pb(
    embedding_spec {
      stacked_table_specs {
        stack_name: "a_b"
        stack_vocab_size: 48
        stack_embedding_dim: 8
        total_sample_count: 32
        num_sparsecores: 2
        table_specs {
          table_name: "a"
          vocab_size: 10
          embedding_dim: 2
          padded_vocab_size: 16
          padded_embedding_dim: 8
          combiner: "sum"
          feature_specs { feature_name: "fa" }
        }
        table_specs {
          table_name: "b"
          vocab_size: 17
          embedding_dim: 3
          padded_vocab_size: 32
          padded_embedding_dim: 8
          combiner: "sum"
          row_offset_in_shard: 8
          feature_specs { feature_name: "fb" row_offset: 16 col_offset: 16 }
        }
      }
    })pb");
  EXPECT_EQ(plan->DebugString(), expected.DebugString());
}

TEST(MakePlanTest, PassesTheOptionsOfEveryStrategy) {
  const auto plan = [](const std::string& strategy) {
    return MakePlan(Request(strategy))->embedding_spec();
  };
  // A limit of 0 lets no two tables share a stack.
  EXPECT_EQ(plan("auto_stack {}").stacked_table_specs_size(), 2);
  const auto rotated =
      plan("auto_stack { activation_mem_bytes_limit: 1024 rotation: 1 }");
  EXPECT_EQ(rotated.stacked_table_specs(0).table_specs(1).shard_rotation(), 1);

  const auto named = plan(
      "stack_tables { table_names: ['b', 'a'] stack_name: 's' rotation: 1 }");
  EXPECT_EQ(named.stacked_table_specs(0).stack_name(), "s");
  EXPECT_EQ(named.stacked_table_specs(0).table_specs(0).table_name(), "b");
  EXPECT_EQ(named.stacked_table_specs(0).table_specs(1).shard_rotation(), 1);

  EXPECT_EQ(plan("stack_alone {}").stacked_table_specs_size(), 2);
}

TEST(MakePlanTest, CarriesWarningsAndErrors) {
  proto::PlanRequest request =
      Request("stack_tables { table_names: ['b', 'a'] stack_name: 's' }");
  request.mutable_tables(0)->set_embedding_dim(9);
  EXPECT_EQ(MakePlan(request)->warnings_size(), 1);

  request.mutable_stack_tables()->set_fail_on_excess_padding(true);
  EXPECT_FALSE(MakePlan(request).has_value());

  request.mutable_tables(1)->mutable_quantization()->set_num_buckets(256);
  EXPECT_THAT(MakePlan(request).error().message,
              HasSubstr("different quantization configs"));

  request.mutable_tables(1)->set_is_stacked(true);
  request.mutable_tables(1)->set_stack_name("old");
  EXPECT_THAT(MakePlan(request).error().message,
              HasSubstr("Table b is already stacked in group old"));
}

TEST(MakePlanTest, ExplainsStacks) {
  proto::PlanRequest request = Request(R"pb(
    explain_stacks {
      stacks { stack_name: "b" activation_mem_bytes_limit: 511 }
      stacks { stack_name: "a" activation_mem_bytes_limit: 512 }
    })pb");
  for (proto::Table& table : *request.mutable_tables()) {
    table.set_is_stacked(true);
  }
  const Result<proto::Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.has_value());
  const proto::Plan expected = Parse<proto::Plan>(R"pb(
    reports {
      stack_name: "b"
      activation_bytes_per_sc: 256
      why_apart: "With 'a' its activations would take 512 bytes per SparseCore, above the limit of 511."
    }
    reports {
      stack_name: "a"
      activation_bytes_per_sc: 256
      why_apart: "It could share a stack with 'b': nobody asked for that, see auto_stack_tables."
    })pb");
  EXPECT_EQ(plan->DebugString(), expected.DebugString());

  request.mutable_tables(0)->set_is_stacked(false);
  EXPECT_THAT(MakePlan(request).error().message,
              HasSubstr("Table 'a' is in no stack"));
}

TEST(MakePlanTest, RefusesAnUnknownTableOrNoStrategy) {
  EXPECT_THAT(MakePlan(Request("")).error().message,
              HasSubstr("names no strategy"));
  proto::PlanRequest request = Request("stack_alone {}");
  request.mutable_features(1)->set_table_name("z");
  EXPECT_THAT(MakePlan(request).error().message,
              HasSubstr("Feature 'fb': its table 'z' is not in"));
}

}  // namespace
}  // namespace jte::planner
