// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/planner/place.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::planner {

int64_t PaddedVocabularySize(const Table& table, const Topology& topology) {
  return RoundUp(table.vocabulary_size, kAlignment * topology.num_scs());
}

int64_t PaddedEmbeddingDim(const Table& table) {
  return RoundUp(table.embedding_dim, kAlignment);
}

std::vector<ShardPosition> PlaceTables(
    std::span<const int64_t> padded_vocabulary_sizes, int64_t num_shards,
    int64_t rotation) {
  const int64_t step = (rotation % num_shards + num_shards) % num_shards;
  std::vector<ShardPosition> positions;
  ShardPosition next;
  for (const int64_t size : padded_vocabulary_sizes) {
    positions.push_back(next);
    next.row_offset_in_shard += size / num_shards;
    next.shard_rotation = (next.shard_rotation + step) % num_shards;
  }
  return positions;
}

Stack PlaceStack(const Model& model, std::string name,
                 std::span<const TableIndex> tables,
                 std::span<const FeatureIndex> features, int64_t rotation) {
  const int64_t num_shards = model.topology.num_scs();
  Stack stack;
  stack.name = std::move(name);

  std::vector<int64_t> sizes;
  for (const TableIndex t : tables) {
    const Table& table = model.tables[t];
    sizes.push_back(PaddedVocabularySize(table, model.topology));
    stack.vocabulary_size += sizes.back();
    stack.embedding_dim =
        std::max(stack.embedding_dim, PaddedEmbeddingDim(table));
  }

  const std::vector<ShardPosition> positions =
      PlaceTables(sizes, num_shards, rotation);
  std::unordered_map<TableIndex, ShardPosition> position_of;
  for (size_t i = 0; i < tables.size(); ++i) {
    position_of[tables[i]] = positions[i];
    stack.tables.push_back(
        {.table = tables[i],
         .padded_vocabulary_size = sizes[i],
         .row_offset_in_shard = positions[i].row_offset_in_shard,
         .shard_rotation = positions[i].shard_rotation});
  }

  for (const FeatureIndex f : features) {
    const Feature& feature = model.features[f];
    const ShardPosition& position = position_of.at(feature.table);
    stack.features.push_back(
        {.feature = f,
         .transform = {
             .row_offset = stack.num_samples,
             .col_offset = position.row_offset_in_shard * num_shards,
             .col_shift = position.shard_rotation,
         }});
    stack.num_samples += feature.num_samples;
  }
  return stack;
}

}  // namespace jte::planner
