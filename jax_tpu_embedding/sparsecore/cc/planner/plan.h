// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the planner reads and what it returns. Plain values.
//
// A table is padded to a multiple of 8 rows per shard and of 8 columns. A stack
// is a table made of tables of one width: each member takes a run of rows in
// every shard, below the members before it.
//
//             shard 0  shard 1  shard 2  shard 3     (a: 10 rows, b: 9 rows)
//   local 0   a0       a1       a2       a3          row_offset_in_shard 0
//         1   a4       a5       a6       a7
//         2   a8       a9       -        -
//         ..  -        -        -        -           padded to 8 rows each
//         8   b2       b3       b0       b1          row_offset_in_shard 8,
//         9   b6       b7       b4       b5          shard_rotation 2
//         10  -        -        b8       -
//         ..

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/mod_shard.h"

namespace jte::planner {

// Index of a table in Model::tables, of a feature in Model::features.
using TableIndex = int64_t;
using FeatureIndex = int64_t;

// Rows of a stack are numbered in int32, and the largest int32 is the padding
// value.
inline constexpr int64_t kMaxStackRows = std::numeric_limits<int32_t>::max();

struct Quantization {
  double min_value = 0;
  double max_value = 0;
  int64_t num_buckets = 0;

  bool operator==(const Quantization&) const = default;
};

struct Table {
  std::string name;
  int64_t vocabulary_size = 0;
  int64_t embedding_dim = 0;
  std::string combiner;
  int64_t optimizer_id = 0;  // equal for tables with equal optimizers
  std::string optimizer;     // as messages show it
  std::optional<Quantization> quantization;
  std::string stack_name;   // the stack it is in now, else its own name
  bool is_stacked = false;  // whether a plan has been applied to it
};

struct Feature {
  std::string name;
  TableIndex table = 0;
  int64_t num_samples = 0;  // in a global batch
};

// Everything that a plan depends on. Topology::local_device_count does not
// matter: all hosts make the same plan.
struct Model {
  Topology topology;
  std::vector<Table> tables;      // in the order features first name them
  std::vector<Feature> features;  // in flattened order
};

struct TablePlacement {
  TableIndex table = 0;
  int64_t padded_vocabulary_size = 0;
  int64_t row_offset_in_shard = 0;
  int64_t shard_rotation = 0;

  bool operator==(const TablePlacement&) const = default;
};

struct FeaturePlacement {
  FeatureIndex feature = 0;
  IdTransform transform;
};

struct Stack {
  std::string name;
  int64_t vocabulary_size = 0;  // rows, padding included
  int64_t embedding_dim = 0;    // columns of every member, padding included
  int64_t num_samples = 0;      // of all features, in a global batch
  std::vector<TablePlacement> tables;      // by ascending row offset in shards
  std::vector<FeaturePlacement> features;  // by ascending row offset in batches
};

struct Plan {
  std::vector<Stack> stacks;
  std::vector<std::string> warnings;
};

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLAN_H_
