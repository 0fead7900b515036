// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the tables of one stack go, and the samples of its features.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLACE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLACE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

// Rows with padding: every shard gets the same multiple of 8.
int64_t PaddedVocabularySize(const Table& table, const Topology& topology);

// Columns with padding.
int64_t PaddedEmbeddingDim(const Table& table);

struct ShardPosition {
  int64_t row_offset_in_shard = 0;
  int64_t shard_rotation = 0;

  bool operator==(const ShardPosition&) const = default;
};

// One position per table: each starts in a shard where the one before it ends,
// `rotation` shards further on (modulo num_shards; may be negative).
//
//   PlaceTables({64, 128, 64}, /*num_shards=*/8, /*rotation=*/3)
//       == {{0, 0}, {8, 3}, {24, 6}}
//
// Requires num_shards > 0 and sizes that are multiples of it.
std::vector<ShardPosition> PlaceTables(
    std::span<const int64_t> padded_vocabulary_sizes, int64_t num_shards,
    int64_t rotation);

// The stack of `tables`, in this order, as wide as the widest of them, with the
// samples of `features` one after another, in this order.
//
// Requires a valid model (validate.h) and features of these tables only.
Stack PlaceStack(const Model& model, std::string name,
                 std::span<const TableIndex> tables,
                 std::span<const FeatureIndex> features, int64_t rotation);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLACE_H_
