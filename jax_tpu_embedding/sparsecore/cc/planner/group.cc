// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/group.h"

#include <algorithm>
#include <cstddef>

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

namespace jte {
namespace {

bool Alike(const Table& a, const Table& b) {
  return PaddedEmbeddingDim(a) == PaddedEmbeddingDim(b) &&
         a.optimizer_id == b.optimizer_id && a.combiner == b.combiner &&
         a.quantization == b.quantization;
}

}  // namespace

std::vector<std::vector<TableIndex>> GroupTables(const Model& model) {
  std::vector<std::vector<TableIndex>> groups;
  for (size_t t = 0; t < model.tables.size(); ++t) {
    auto group = std::ranges::find_if(groups, [&model, t](const auto& group) {
      return Alike(model.tables[group.front()], model.tables[t]);
    });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
    }
    group->push_back(t);
  }
  return groups;
}

}  // namespace jte
