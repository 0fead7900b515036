// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The entries of the COO buffers of one device, on a GPU.
//
// Row pointers are in the GPU's memory, so a first kernel reads where the
// partitions are, and the next ones find the partition of each cell; but one
// partition they know by themselves, and spare themselves a launch. What is
// corrupt is noted in `Flaws`, and stands for entries that are not: a GPU
// cannot raise in the middle of a program, so what is made of them is NaN, as
// lowering/reference/corrupt_buffers.py says.
//
// Source: layout/csr_layout.h, kernels/coo/partitions.h.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_COO_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_COO_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::gpu {

// All in the GPU's memory.
struct CooBuffers {
  const int32_t* row_pointers;
  const int32_t* embedding_ids;
  const int32_t* sample_ids;
  const float* gains;
  const int32_t* num_minibatches;  // one number
};

struct CooGeometry {
  int64_t num_row_pointers;
  int64_t num_cells;
  int num_devices;        // G, that share the tables
  int num_sc_per_device;  // S
  int64_t rows_per_shard;
  int64_t batch_size_per_sc;
  bool enable_minibatching;

  JTE_DEVICE int num_targets() const { return num_devices * num_sc_per_device; }
  JTE_DEVICE int num_regions() const {
    return enable_minibatching ? 1 : num_sc_per_device;
  }
  // Of row pointers; as many as any number of minibatches has.
  JTE_DEVICE int64_t num_blocks() const;
  JTE_DEVICE int64_t num_partitions() const {
    return num_blocks() * num_targets();
  }
};

// What is wrong with buffers; 0 where nothing is.
struct Flaws {
  int32_t partitions;  // row pointers or the number of minibatches
  int32_t entries;     // ids or samples out of range, or rows out of order

  JTE_DEVICE bool any() const { return (partitions | entries) != 0; }
};

// Where partition p has its entries: cells [begins[p], ends[p]). In the order
// of cells: by source, minibatch and target. Partitions of minibatches that
// there are none of are empty, and behind all others.
struct Partitions {
  int32_t* begins;
  int32_t* ends;
};

// Whether all entries are one run, ordered by row.
constexpr bool HasOnePartition(const CooGeometry& geometry) {
  return geometry.num_devices == 1 && geometry.num_sc_per_device == 1 &&
         !geometry.enable_minibatching;
}

// Cells that are so few that each thread looks at all of them in less time than
// the launches take that a plan has otherwise.
inline constexpr int64_t kFewCells = 256;

// Reads them unless there is one, and notes flaws, which have to be 0. Returns
// null, or the message of an error.
const char* ReadPartitions(Stream stream, const CooBuffers& buffers,
                           const CooGeometry& geometry,
                           const Partitions& partitions, Flaws* flaws);

// A cell of the buffers. Numbers that are out of range stand for the nearest
// that are not.
struct Cell {
  bool is_entry;
  bool is_wrong;  // an entry with a number out of range
  int32_t partition;
  int32_t target;  // the SparseCore that has the row, of all devices
  int32_t source;  // the SparseCore that has the sample
  int32_t row;     // of the target's shard
  int32_t sample;  // of the source's batch
};

JTE_DEVICE int64_t CooGeometry::num_blocks() const {
  const int64_t targets = num_targets();
  return num_row_pointers / (targets > kMinRowPointersPerBlock
                                 ? targets
                                 : kMinRowPointersPerBlock);
}

JTE_DEVICE int64_t RoundUpToCells(int64_t x) {
  return (x + kAlignment - 1) / kAlignment * kAlignment;
}

// The flaws of partitions, which a kernel that reads cells has to know before:
// if there is one partition, it looks for them itself, and one of its threads,
// the first, notes them.
JTE_DEVICE Flaws FlawsOfPartitions(const CooBuffers& buffers,
                                   const CooGeometry& geometry, bool is_first,
                                   Flaws* flaws) {
  if (!HasOnePartition(geometry)) return {flaws->partitions, 0};
  const int64_t end = buffers.row_pointers[0];
  bool are_wrong = end < 0 || end > geometry.num_cells;
  // Row pointers behind it say where it ends. Larger ones are those of buffers
  // for more devices.
  JTE_UNROLL
  for (int i = 1; i < kMinRowPointersPerBlock; ++i) {
    if (i >= geometry.num_row_pointers) break;
    are_wrong |= buffers.row_pointers[i] > RoundUpToCells(end);
  }
  if (are_wrong && is_first) flaws->partitions = 1;
  return {are_wrong, 0};
}

// Where the entries of one partition end. With wrong row pointers all cells are
// entries.
JTE_DEVICE int64_t EndOfOnePartition(const CooBuffers& buffers,
                                     const CooGeometry& geometry,
                                     const Flaws& flaws) {
  return flaws.partitions != 0 ? geometry.num_cells : buffers.row_pointers[0];
}

// `value`, or the nearest number from 0 to limit - 1.
JTE_DEVICE int32_t InRange(int32_t value, int64_t limit) {
  if (value < 0 || limit <= 0) return 0;
  return value < limit ? value : static_cast<int32_t>(limit - 1);
}

// Cells [begin, end).
struct Cells {
  int64_t begin;
  int64_t end;
};

// Those of the entries of partition p. With wrong row pointers all cells of a
// region are entries for its first target.
JTE_DEVICE Cells CellsOf(int64_t p, const CooGeometry& geometry,
                         const Partitions& partitions, const Flaws& flaws) {
  if (flaws.partitions == 0) return {partitions.begins[p], partitions.ends[p]};
  const int64_t region = p / geometry.num_targets();
  if (region >= geometry.num_regions() || p % geometry.num_targets() != 0) {
    return {0, 0};
  }
  const int64_t region_size = geometry.num_cells / geometry.num_regions();
  return {region * region_size, (region + 1) * region_size};
}

// Requires: there are several partitions. ReadCells reads those of one.
JTE_DEVICE Cell ReadCell(int64_t i, const CooBuffers& buffers,
                         const CooGeometry& geometry,
                         const Partitions& partitions, const Flaws& flaws) {
  Cell cell = {};
  const int num_targets = geometry.num_targets();
  if (flaws.partitions != 0) {
    const int64_t region_size = geometry.num_cells / geometry.num_regions();
    const int64_t region = region_size > 0 ? i / region_size : 0;
    cell.is_entry = region < geometry.num_regions();
    cell.partition = static_cast<int32_t>(region * num_targets);
    cell.source = static_cast<int32_t>(region);
  } else {
    // The last partition that begins at the cell or before it.
    int64_t first = 0;
    int64_t last = geometry.num_partitions();
    while (last - first > 1) {
      const int64_t middle = (first + last) / 2;
      if (partitions.begins[middle] <= i) {
        first = middle;
      } else {
        last = middle;
      }
    }
    const int64_t minibatches =
        geometry.enable_minibatching ? *buffers.num_minibatches : 1;
    cell.is_entry = partitions.begins[first] <= i && i < partitions.ends[first];
    cell.partition = static_cast<int32_t>(first);
    cell.target = static_cast<int32_t>(first % num_targets);
    cell.source = static_cast<int32_t>(first / num_targets / minibatches);
  }
  if (!cell.is_entry) return cell;
  cell.row = InRange(buffers.embedding_ids[i], geometry.rows_per_shard);
  cell.sample = InRange(buffers.sample_ids[i], geometry.batch_size_per_sc);
  cell.is_wrong = cell.row != buffers.embedding_ids[i] ||
                  cell.sample != buffers.sample_ids[i];
  return cell;
}

#if defined(__CUDACC__) || defined(JTE_EMULATED_GPU)

// Those of several numbers; behind the last cell there is no entry.
template <bool kHasOnePartition>
JTE_DEVICE void ReadCells(const Numbers& numbers, const CooBuffers& buffers,
                          const CooGeometry& geometry,
                          const Partitions& partitions, const Flaws& flaws,
                          Cell (&cells)[Numbers::kSize]) {
  if constexpr (kHasOnePartition) {
    // Nothing depends on what a cell has, so that all are read before the first
    // is looked at.
    int32_t rows[Numbers::kSize];
    int32_t samples[Numbers::kSize];
    JTE_UNROLL
    for (int k = 0; k < Numbers::kSize; ++k) {
      const int64_t i = numbers.number_or_last(k);
      rows[k] = buffers.embedding_ids[i];
      samples[k] = buffers.sample_ids[i];
    }
    const int64_t end = EndOfOnePartition(buffers, geometry, flaws);
    JTE_UNROLL
    for (int k = 0; k < Numbers::kSize; ++k) {
      Cell& cell = cells[k];
      cell = {};
      cell.is_entry = numbers.has(k) && numbers.number(k) < end;
      if (!cell.is_entry) continue;
      cell.row = InRange(rows[k], geometry.rows_per_shard);
      cell.sample = InRange(samples[k], geometry.batch_size_per_sc);
      cell.is_wrong = cell.row != rows[k] || cell.sample != samples[k];
    }
  } else {
    JTE_UNROLL
    for (int k = 0; k < Numbers::kSize; ++k) {
      cells[k] = numbers.has(k) ? ReadCell(numbers.number(k), buffers, geometry,
                                           partitions, flaws)
                                : Cell{};
    }
  }
}

#endif

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_COO_H_
