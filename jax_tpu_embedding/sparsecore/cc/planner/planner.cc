// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/planner.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/planner/group.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/pack.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/validate.h"

namespace jte::planner {
namespace {

// What strategies look up in a model, found once: a model may have a million
// tables, each in a stack of its own.
class Lookups {
 public:
  explicit Lookups(const Model& model)
      : stacked_(FindStackedTables(model)),
        features_of_table_(model.tables.size()) {
    for (FeatureIndex f = 0; f < std::ssize(model.features); ++f) {
      features_of_table_[model.features[f].table].push_back(f);
    }
  }

  const StackedTables& stacked() const { return stacked_; }

  // The features of `tables`, which are different ones, in flattened order.
  std::vector<FeatureIndex> FeaturesOf(
      std::span<const TableIndex> tables) const {
    std::vector<FeatureIndex> features;
    for (const TableIndex t : tables) {
      features.insert(features.end(), features_of_table_[t].begin(),
                      features_of_table_[t].end());
    }
    std::ranges::sort(features);
    return features;
  }

 private:
  StackedTables stacked_;
  std::vector<std::vector<FeatureIndex>> features_of_table_;
};

std::string JoinedNames(const Model& model,
                        std::span<const TableIndex> tables) {
  std::string name;
  for (const TableIndex t : tables) {
    if (!name.empty()) name += '_';
    name += model.tables[t].name;
  }
  return name;
}

// The tables that `options` names, in its order.
Result<std::vector<TableIndex>> FindTables(const Model& model,
                                           const StackTablesOptions& options) {
  std::unordered_map<std::string_view, TableIndex> table_of_name;
  for (TableIndex t = 0; t < std::ssize(model.tables); ++t) {
    table_of_name.emplace(model.tables[t].name, t);
  }
  std::vector<TableIndex> tables;
  for (const std::string& name : options.table_names) {
    const auto table = table_of_name.find(name);
    if (table == table_of_name.end()) {
      return NotFound("Stack ", options.stack_name,
                      ": no feature has a table called ", name, ".");
    }
    tables.push_back(table->second);
  }
  return tables;
}

// Values that a stack holds only because its tables are not equally wide.
int64_t ExcessPadding(const Model& model, const Stack& stack) {
  int64_t excess = 0;
  for (const TablePlacement& placement : stack.tables) {
    const int64_t dim = PaddedEmbeddingDim(model.tables[placement.table]);
    excess += placement.padded_vocabulary_size * (stack.embedding_dim - dim);
  }
  return excess;
}

}  // namespace

Result<Plan> PlanAutoStack(const Model& model,
                           const AutoStackOptions& options) {
  JTE_RETURN_IF_ERROR(ValidateModel(model));
  if (options.activation_mem_bytes_limit < 0) {
    return InvalidArgument(
        "activation_mem_bytes_limit must not be negative, got ",
        options.activation_mem_bytes_limit, ".");
  }
  const int64_t rotation =
      options.rotation.value_or(model.topology.num_sc_per_device);
  const Load capacity{
      .activation_bytes = options.activation_mem_bytes_limit,
      .rows = kMaxStackRows,
  };
  const std::vector<Load> loads = TableLoads(model);
  const Lookups lookups(model);

  Plan plan;
  for (const std::vector<TableIndex>& group : GroupTables(model)) {
    std::vector<Load> group_loads;
    for (const TableIndex t : group) group_loads.push_back(loads[t]);
    for (const std::vector<size_t>& bin : FirstFit(group_loads, capacity)) {
      std::vector<TableIndex> tables;
      for (const size_t i : bin) tables.push_back(group[i]);
      std::string name = JoinedNames(model, tables);
      JTE_RETURN_IF_ERROR(
          ValidateGroup(model, lookups.stacked(), tables, name));
      plan.stacks.push_back(PlaceStack(model, std::move(name), tables,
                                       lookups.FeaturesOf(tables), rotation));
    }
  }
  JTE_RETURN_IF_ERROR(ValidateStacks(model, plan.stacks));
  return plan;
}

Result<Plan> PlanStackTables(const Model& model,
                             const StackTablesOptions& options) {
  JTE_RETURN_IF_ERROR(ValidateModel(model));
  JTE_ASSIGN_OR_RETURN(const std::vector<TableIndex> tables,
                       FindTables(model, options));
  const Lookups lookups(model);
  JTE_RETURN_IF_ERROR(
      ValidateGroup(model, lookups.stacked(), tables, options.stack_name));
  JTE_RETURN_IF_ERROR(ValidateStackName(model, tables, options.stack_name));

  Plan plan;
  plan.stacks.push_back(
      PlaceStack(model, options.stack_name, tables, lookups.FeaturesOf(tables),
                 options.rotation.value_or(model.topology.num_sc_per_device)));
  JTE_RETURN_IF_ERROR(ValidateStacks(model, plan.stacks));

  const Stack& stack = plan.stacks.front();
  if (const int64_t excess = ExcessPadding(model, stack); excess > 0) {
    std::string message = StrCat(
        "Stack ", stack.name, ": its tables are padded to ",
        stack.embedding_dim, " columns, the width of the widest, which adds ",
        excess, " values. Stack tables of equal width to avoid that.");
    if (options.fail_on_excess_padding) return InvalidArgument(message);
    plan.warnings.push_back(std::move(message));
  }
  return plan;
}

Result<Plan> PlanStackAlone(const Model& model) {
  JTE_RETURN_IF_ERROR(ValidateModel(model));
  const Lookups lookups(model);
  Plan plan;
  for (TableIndex t = 0; t < std::ssize(model.tables); ++t) {
    const Table& table = model.tables[t];
    if (table.is_stacked) continue;
    if (table.stack_name != table.name) {
      return InvalidArgument(
          "Invalid stacking: table ", table.name, " has no stack, but says ",
          "that it is in ", table.stack_name,
          ". Reset both, stacked_table_spec and setting_in_stack, to None.");
    }
    const std::vector<TableIndex> tables = {t};
    JTE_RETURN_IF_ERROR(
        ValidateGroup(model, lookups.stacked(), tables, table.name));
    std::vector<FeatureIndex> features = lookups.FeaturesOf(tables);
    std::ranges::sort(features, {}, [&model](FeatureIndex f) {
      return std::string_view(model.features[f].name);
    });
    plan.stacks.push_back(
        PlaceStack(model, table.name, tables, features, /*rotation=*/0));
  }
  JTE_RETURN_IF_ERROR(ValidateStacks(model, plan.stacks));
  return plan;
}

}  // namespace jte::planner
