// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The plan of an update: the entries of a batch in the order of rows.
// It depends on ids alone, not on tables or gradients.
//
// The terms of a row are added in the order of the CPU's
// (kernels/update/sum_rows.h), with blocks of `block_size`. So a row that all
// samples name is the work of many, and the sum has the same bits whoever is
// first.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_ROW_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_ROW_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {

// Entries [begin, end) of one row and one source.
struct RowBlock {
  int32_t begin;
  int32_t end;
  int32_t source;
  int32_t unused;
};

// A row with more than block_size entries: the number of the row among those of
// the batch, and its blocks, in their order.
struct LongRow {
  int32_t row;
  int32_t first_block;
  int32_t num_blocks;
  int32_t unused;
};

struct GroupCounts {
  int32_t num_starts;
  int32_t num_long_rows;
  int32_t num_blocks;
  Flaws flaws;  // of the buffers

  JTE_DEVICE int32_t num_rows() const { return num_starts - 1; }
};

// Row i of the batch has the entries [starts[i], starts[i + 1]), and the last
// of the starts is where the entries end.
struct RowGroups {
  int32_t* rows;     // cells; of the device's table
  int32_t* samples;  // cells; of the device's batch
  int32_t* starts;   // cells + 1
  // Of each cell, where it was in the buffers, unless entries were in their
  // order already: then these are not written, and it is where it was.
  int32_t* cells;
  RowBlock* blocks;     // MaxRowBlocks
  LongRow* long_rows;   // MaxLongRows
  GroupCounts* counts;  // one
};

constexpr int64_t MaxLongRows(int64_t num_cells, int64_t block_size) {
  return block_size > 0 ? num_cells / (block_size + 1) : 0;
}

// A row has one block that is not full for each source.
constexpr int64_t MaxRowBlocks(int64_t num_cells, int64_t block_size,
                               int64_t num_sources) {
  const int64_t max_long_rows = MaxLongRows(num_cells, block_size);
  if (max_long_rows == 0) return 0;
  return num_cells / block_size + max_long_rows * num_sources;
}

struct RowGroupsScratch {
  // Of each cell; not used if there is one partition.
  int32_t* keys;
  int32_t* unsorted_cells;
  int32_t* unsorted_samples;
  Partitions partitions;
  Scratch sort;
};

// block_size: 0 if no row is long. Requires: one device has all tables.
// Returns null, or the message of an error.
const char* GroupByRow(Stream stream, const CooBuffers& buffers,
                       const CooGeometry& geometry, int64_t block_size,
                       const RowGroupsScratch& scratch,
                       const RowGroups& groups);

// Numbers of rows, each once or several times; those that are not in
// [min_row, max_row) stand for no row.
struct RowNumbers {
  const int32_t* rows;
  const int32_t* samples;  // of each; null: the i-th has sample i
  int64_t size;
  int64_t min_row;
  int64_t max_row;
};

// The same of these, which come in any order and from one source. Of scratch,
// keys, cells and sort are used.
const char* GroupRows(Stream stream, const RowNumbers& numbers,
                      int64_t block_size, const RowGroupsScratch& scratch,
                      const RowGroups& groups);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_ROW_H_
