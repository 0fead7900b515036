// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/plan_proto.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/planner/explain.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/planner.h"
#include "jax_tpu_embedding/sparsecore/lib/proto/embedding_spec.pb.h"

namespace jte::planner {
namespace {

namespace spec = ::third_party::py::jax_tpu_embedding::sparsecore_lib_proto;

Table TableFromProto(const proto::Table& message) {
  Table table;
  table.name = message.name();
  table.vocabulary_size = message.vocabulary_size();
  table.embedding_dim = message.embedding_dim();
  table.combiner = message.combiner();
  table.optimizer_id = message.optimizer_id();
  table.optimizer = message.optimizer();
  table.stack_name = message.stack_name();
  table.is_stacked = message.is_stacked();
  if (message.has_quantization()) {
    table.quantization = {
        .min_value = message.quantization().min_value(),
        .max_value = message.quantization().max_value(),
        .num_buckets = message.quantization().num_buckets(),
    };
  }
  return table;
}

template <typename Message>
std::optional<int64_t> Rotation(const Message& strategy) {
  if (!strategy.has_rotation()) return std::nullopt;
  return strategy.rotation();
}

Result<Plan> RunStrategy(const Model& model,
                         const proto::PlanRequest& request) {
  switch (request.strategy_case()) {
    case proto::PlanRequest::kAutoStack: {
      const proto::AutoStack& strategy = request.auto_stack();
      return PlanAutoStack(model, {.activation_mem_bytes_limit =
                                       strategy.activation_mem_bytes_limit(),
                                   .rotation = Rotation(strategy)});
    }
    case proto::PlanRequest::kStackTables: {
      const proto::StackTables& strategy = request.stack_tables();
      return PlanStackTables(
          model, {.table_names = {strategy.table_names().begin(),
                                  strategy.table_names().end()},
                  .stack_name = strategy.stack_name(),
                  .rotation = Rotation(strategy),
                  .fail_on_excess_padding = strategy.fail_on_excess_padding()});
    }
    case proto::PlanRequest::kStackAlone:
      return PlanStackAlone(model);
    case proto::PlanRequest::kExplainStacks:  // not a plan: see MakePlan
    case proto::PlanRequest::STRATEGY_NOT_SET:
      break;
  }
  return InvalidArgument(
      "The plan request names no strategy. Set auto_stack, stack_tables or "
      "stack_alone.");
}

Result<proto::Plan> Explain(const Model& model,
                            const proto::ExplainStacks& request) {
  std::vector<StackQuestion> questions;
  for (const auto& stack : request.stacks()) {
    questions.push_back(
        {.stack_name = stack.stack_name(),
         .activation_mem_bytes_limit = stack.activation_mem_bytes_limit()});
  }
  JTE_ASSIGN_OR_RETURN(std::vector<StackReport> reports,
                       ExplainStacks(model, questions));
  proto::Plan message;
  for (const StackReport& report : reports) {
    proto::StackReport& report_message = *message.add_reports();
    report_message.set_stack_name(report.stack_name);
    report_message.set_activation_bytes_per_sc(report.activation_bytes_per_sc);
    report_message.set_why_apart(report.why_apart);
  }
  return message;
}

}  // namespace

Result<Model> ModelFromProto(const proto::PlanRequest& request) {
  Model model;
  model.topology = {
      .local_device_count = request.global_device_count(),
      .global_device_count = request.global_device_count(),
      .num_sc_per_device = request.num_sc_per_device(),
  };
  std::unordered_map<std::string_view, TableIndex> table_of_name;
  for (const proto::Table& table : request.tables()) {
    table_of_name.emplace(table.name(), model.tables.size());
    model.tables.push_back(TableFromProto(table));
  }
  for (const proto::Feature& feature : request.features()) {
    const auto table = table_of_name.find(feature.table_name());
    if (table == table_of_name.end()) {
      return InvalidArgument("Feature '", feature.name(), "': its table '",
                             feature.table_name(),
                             "' is not in the plan request.");
    }
    model.features.push_back({.name = feature.name(),
                              .table = table->second,
                              .num_samples = feature.num_samples()});
  }
  return model;
}

proto::Plan PlanToProto(const Model& model, const Plan& plan) {
  proto::Plan message;
  for (const Stack& stack : plan.stacks) {
    spec::StackedTableSpecProto& stack_message =
        *message.mutable_embedding_spec()->add_stacked_table_specs();
    stack_message.set_stack_name(stack.name);
    stack_message.set_stack_vocab_size(stack.vocabulary_size);
    stack_message.set_stack_embedding_dim(stack.embedding_dim);
    stack_message.set_total_sample_count(stack.num_samples);
    stack_message.set_num_sparsecores(model.topology.num_scs());

    std::unordered_map<TableIndex, spec::TableSpecProto*> message_of_table;
    for (const TablePlacement& placement : stack.tables) {
      const Table& table = model.tables[placement.table];
      spec::TableSpecProto& table_message = *stack_message.add_table_specs();
      table_message.set_table_name(table.name);
      table_message.set_vocab_size(table.vocabulary_size);
      table_message.set_embedding_dim(table.embedding_dim);
      table_message.set_padded_vocab_size(placement.padded_vocabulary_size);
      table_message.set_padded_embedding_dim(stack.embedding_dim);
      table_message.set_row_offset_in_shard(placement.row_offset_in_shard);
      table_message.set_shard_rotation(placement.shard_rotation);
      table_message.set_combiner(table.combiner);
      message_of_table[placement.table] = &table_message;
    }
    for (const FeaturePlacement& placement : stack.features) {
      const Feature& feature = model.features[placement.feature];
      spec::FeatureSpecProto& feature_message =
          *message_of_table.at(feature.table)->add_feature_specs();
      feature_message.set_feature_name(feature.name);
      feature_message.set_row_offset(placement.transform.row_offset);
      feature_message.set_col_offset(placement.transform.col_offset);
      feature_message.set_col_shift(placement.transform.col_shift);
    }
  }
  message.mutable_warnings()->Assign(plan.warnings.begin(),
                                     plan.warnings.end());
  return message;
}

Result<proto::Plan> MakePlan(const proto::PlanRequest& request) {
  JTE_ASSIGN_OR_RETURN(Model model, ModelFromProto(request));
  if (request.has_explain_stacks()) {
    return Explain(model, request.explain_stacks());
  }
  JTE_ASSIGN_OR_RETURN(Plan plan, RunStrategy(model, request));
  return PlanToProto(model, plan);
}

}  // namespace jte::planner
