// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// MOD sharding: which shard owns a row, and where.
//
// A stack has num_shards shards, one per SparseCore of the job. Logical id i of
// a table that sits at row_offset_in_shard in its stack, rotated by r shards:
//
//   shard     = (i + r) mod num_shards
//   local row = i div num_shards + row_offset_in_shard
//
// A stack row holds both in one number, local row * num_shards + shard, so that
// shard = stack row mod num_shards and local row = stack row div num_shards.
// The public names col_offset and col_shift speak of it as of a column.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_MOD_SHARD_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_MOD_SHARD_H_

#include <cstdint>

namespace jte {

// Where the ids of one feature go. Python: FeatureIdTransformation.
struct IdTransform {
  int64_t row_offset = 0;  // first sample in the stacked global batch
  int64_t col_offset = 0;  // row_offset_in_shard * num_shards
  int64_t col_shift = 0;   // shard rotation

  // id >= 0. The result fits int32 when the stack's vocabulary does.
  int64_t StackRow(int64_t id, int64_t num_shards) const {
    return (id + col_shift) % num_shards + (id - id % num_shards) + col_offset;
  }
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_MOD_SHARD_H_
