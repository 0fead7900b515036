// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::planner {
namespace {

// So that a table, which is a stack by itself, can be numbered with padding.
constexpr int64_t kMaxRows = kMaxStackRows;
constexpr int64_t kMaxColumns = kMaxStackRows / kAlignment * kAlignment;

// Far above any batch, and low enough that sums over features fit int64.
constexpr int64_t kMaxSamples = int64_t{1} << 40;

Result<void> ValidateTopology(const Topology& topology) {
  if (topology.global_device_count <= 0) {
    return InvalidArgument("global_device_count must be positive, got ",
                           topology.global_device_count, ".");
  }
  if (topology.num_sc_per_device <= 0) {
    return InvalidArgument("num_sc_per_device must be positive, got ",
                           topology.num_sc_per_device, ".");
  }
  // Divides, because the product may not fit.
  if (topology.global_device_count >
      kMaxRows / kAlignment / topology.num_sc_per_device) {
    return InvalidArgument(
        topology.global_device_count, " devices x ", topology.num_sc_per_device,
        " SparseCores are more shards than a table can have: each has at least "
        "8 of its at most ",
        kMaxRows, " rows.");
  }
  return {};
}

Result<void> ValidateTable(const Table& table) {
  if (table.vocabulary_size <= 0 || table.vocabulary_size > kMaxRows) {
    return InvalidArgument("Table '", table.name,
                           "': vocabulary_size must be in [1, ", kMaxRows,
                           "], got ", table.vocabulary_size, ".");
  }
  if (table.embedding_dim <= 0 || table.embedding_dim > kMaxColumns) {
    return InvalidArgument("Table '", table.name,
                           "': embedding_dim must be in [1, ", kMaxColumns,
                           "], got ", table.embedding_dim, ".");
  }
  return {};
}

Result<void> ValidateFeature(const Feature& feature, int64_t num_tables) {
  if (feature.table < 0 || feature.table >= num_tables) {
    return InvalidArgument("Feature '", feature.name, "' names table ",
                           feature.table, " of ", num_tables, ".");
  }
  if (feature.num_samples < 0 || feature.num_samples > kMaxSamples) {
    return InvalidArgument("Feature '", feature.name,
                           "': the number of samples must be in [0, ",
                           kMaxSamples, "], got ", feature.num_samples, ".");
  }
  return {};
}

std::string Describe(const std::string& text) { return text; }

// All tables have the same `member`; the error calls it `name`, and shows
// `description` of the first two that differ.
template <typename Member, typename Description>
Result<void> AllEqual(const Model& model, std::span<const TableIndex> tables,
                      std::string_view stack_name, std::string_view name,
                      Member Table::* member,
                      Description Table::* description) {
  const Table& first = model.tables[tables.front()];
  for (const TableIndex t : tables) {
    const Table& table = model.tables[t];
    if (table.*member == first.*member) continue;
    return InvalidArgument("Tables ", first.name, " and ", table.name,
                           " have different ", name, ": ",
                           Describe(first.*description), " and ",
                           Describe(table.*description),
                           ". They cannot both be in stack ", stack_name, ".");
  }
  return {};
}

}  // namespace

std::string Describe(const std::optional<Quantization>& quantization) {
  if (!quantization) return "none";
  return StrCat(quantization->num_buckets, " buckets in [",
                quantization->min_value, ", ", quantization->max_value, "]");
}

Result<void> ValidateModel(const Model& model) {
  JTE_RETURN_IF_ERROR(ValidateTopology(model.topology));

  std::unordered_set<std::string_view> names;
  for (const Table& table : model.tables) {
    if (!names.insert(table.name).second) {
      return InvalidArgument("Two tables are called '", table.name,
                             "'. Rename one of them.");
    }
    JTE_RETURN_IF_ERROR(ValidateTable(table));
  }

  names.clear();
  for (const Feature& feature : model.features) {
    if (!names.insert(feature.name).second) {
      return InvalidArgument("Feature spec ", feature.name,
                             " is already defined. Rename one of the two.");
    }
    JTE_RETURN_IF_ERROR(ValidateFeature(feature, model.tables.size()));
  }
  return {};
}

StackedTables FindStackedTables(const Model& model) {
  StackedTables stacked;
  for (TableIndex t = 0; t < std::ssize(model.tables); ++t) {
    const Table& table = model.tables[t];
    if (table.is_stacked) stacked[table.stack_name].push_back(t);
  }
  return stacked;
}

Result<void> ValidateGroup(const Model& model, const StackedTables& stacked,
                           std::span<const TableIndex> tables,
                           std::string_view stack_name) {
  if (tables.empty()) {
    return InvalidArgument("Stack ", stack_name,
                           " has no tables. Name at least one.");
  }

  std::unordered_set<TableIndex> members;
  for (const TableIndex t : tables) {
    const Table& table = model.tables[t];
    if (table.stack_name != table.name) {
      return InvalidArgument(
          "Table ", table.name, " is already stacked in group ",
          table.stack_name,
          ". A table can be in one stack only: leave it out, or start from new "
          "specs.");
    }
    members.insert(t);
  }
  if (const auto users = stacked.find(stack_name); users != stacked.end()) {
    for (const TableIndex t : users->second) {
      if (members.contains(t)) continue;
      return InvalidArgument("Stack name ", stack_name,
                             " cannot be used since it's already used. Table ",
                             model.tables[t].name,
                             " is in that stack. Pass another.");
    }
  }
  if (members.size() != tables.size()) {
    members.clear();
    for (const TableIndex t : tables) {
      if (members.insert(t).second) continue;
      return InvalidArgument("Table ", model.tables[t].name,
                             " is repeated in group ", stack_name,
                             ". Name it once.");
    }
  }

  JTE_RETURN_IF_ERROR(AllEqual(model, tables, stack_name, "optimizers",
                               &Table::optimizer_id, &Table::optimizer));
  JTE_RETURN_IF_ERROR(AllEqual(model, tables, stack_name, "combiners",
                               &Table::combiner, &Table::combiner));
  return AllEqual(model, tables, stack_name, "quantization configs",
                  &Table::quantization, &Table::quantization);
}

Result<void> ValidateStackName(const Model& model,
                               std::span<const TableIndex> tables,
                               std::string_view stack_name) {
  for (TableIndex t = 0; t < std::ssize(model.tables); ++t) {
    const Table& table = model.tables[t];
    if (table.name == stack_name && table.stack_name == stack_name &&
        std::ranges::count(tables, t) == 0) {
      return InvalidArgument(
          "Stack name ", stack_name, " cannot be used: it is the name of a ",
          "table that is not in the stack, and that will be a stack of this ",
          "name when it is prepared. Pass another.");
    }
  }
  return {};
}

Result<void> ValidateStacks(const Model& model, std::span<const Stack> stacks) {
  std::unordered_set<std::string_view> names;
  for (const Stack& stack : stacks) {
    if (!names.insert(stack.name).second) {
      return InvalidArgument("Two stacks would be called '", stack.name,
                             "': a stack takes the names of its tables, joined "
                             "by '_'. Rename a table.");
    }
    if (stack.vocabulary_size > kMaxRows) {
      return InvalidArgument(
          "Stack '", stack.name, "' would have ", stack.vocabulary_size,
          " rows, padded for ", model.topology.num_scs(),
          " SparseCores; ids are int32, so it can have at most ", kMaxRows,
          ". Use smaller vocabularies, or put fewer tables into the stack.");
    }
    const int64_t samples_per_device =
        CeilDiv(stack.num_samples, model.topology.global_device_count);
    if (samples_per_device > kMaxSamplesPerDevice) {
      return InvalidArgument(
          "Stack '", stack.name, "' would have ", samples_per_device,
          " samples per device (", stack.num_samples, " on ",
          model.topology.global_device_count,
          " devices), and can have at most ", kMaxSamplesPerDevice,
          ". Use a smaller batch, or put fewer tables into the stack.");
    }
  }
  return {};
}

}  // namespace jte::planner
