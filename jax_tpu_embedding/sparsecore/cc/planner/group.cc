// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/group.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

namespace jte::planner {
namespace {

// Equal for tables that may share a stack.
auto GroupKey(const Table& table) {
  const Quantization quantization = table.quantization.value_or(Quantization());
  return std::tuple(PaddedEmbeddingDim(table), table.optimizer_id,
                    std::string_view(table.combiner),
                    table.quantization.has_value(), quantization.min_value,
                    quantization.max_value, quantization.num_buckets);
}

}  // namespace

std::vector<std::vector<TableIndex>> GroupTables(const Model& model) {
  std::vector<std::vector<TableIndex>> groups;
  std::map<decltype(GroupKey(Table())), size_t> group_of_key;
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const auto [entry, is_new] =
        group_of_key.emplace(GroupKey(model.tables[t]), groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(t);
  }
  return groups;
}

}  // namespace jte::planner
