// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {
namespace {

// The sample of each cell, or one behind the last where there is no entry.
struct ReadSamples {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  SampleGroupsScratch scratch;
  Flaws* flaws;
  int32_t num_samples;

  JTE_DEVICE void operator()(const Thread& thread) const {
    // Of the partitions alone: entries are what is looked at here.
    const Flaws known = {flaws->partitions, 0};
    for (int64_t i = thread.number(); i < geometry.num_cells;
         i += thread.num_threads()) {
      const Cell cell =
          ReadCell(i, buffers, geometry, scratch.partitions, known);
      if (cell.is_wrong) flaws->entries = 1;
      scratch.cells[i] = static_cast<int32_t>(i);
      scratch.rows[i] = static_cast<int32_t>(
          cell.target % geometry.num_sc_per_device * geometry.rows_per_shard +
          cell.row);
      scratch.keys[i] =
          cell.is_entry
              ? static_cast<int32_t>(cell.source * geometry.batch_size_per_sc +
                                     cell.sample)
              : num_samples;
    }
  }
};

struct CopySamples {
  static constexpr int kThreads = 256;
  KnownEntries entries;
  int32_t* keys;
  int32_t* cells;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < entries.num_cells;
         i += thread.num_threads()) {
      keys[i] = entries.samples[i];
      cells[i] = static_cast<int32_t>(i);
    }
  }
};

// Puts entries in their order, and finds where each sample begins.
struct WriteGroups {
  static constexpr int kThreads = 256;
  const int32_t* cell_rows;
  const float* cell_gains;
  int64_t num_cells;
  SampleGroupsScratch scratch;
  SampleGroups groups;
  int64_t num_samples;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const bool are_corrupt = groups.flaws->any();
    for (int64_t i = thread.number(); i < num_cells;
         i += thread.num_threads()) {
      const int32_t cell = scratch.sorted_cells[i];
      groups.rows[i] = cell_rows[cell];
      groups.gains[i] = are_corrupt ? __builtin_nanf("") : cell_gains[cell];
    }
    for (int64_t s = thread.number(); s <= num_samples;
         s += thread.num_threads()) {
      groups.begins[s] = FirstCellFrom(s);
    }
  }

  // The first of the sorted cells whose sample is `sample` or a later one.
  JTE_DEVICE int32_t FirstCellFrom(int64_t sample) const {
    int64_t first = 0;
    int64_t last = num_cells;
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      if (scratch.sorted_keys[middle] < sample) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return static_cast<int32_t>(first);
  }
};

// Once scratch has the keys.
const char* SortAndWrite(Stream stream, const int32_t* rows, const float* gains,
                         int64_t num_cells, int64_t num_samples,
                         const SampleGroupsScratch& scratch,
                         const SampleGroups& groups) {
  if (const char* error = SortByKey(
          stream, num_cells, NumBits(num_samples), scratch.keys, scratch.cells,
          scratch.sorted_keys, scratch.sorted_cells, scratch.sort)) {
    return error;
  }
  return Launch(
      stream,
      NumBlocks<WriteGroups>(num_cells > num_samples ? num_cells
                                                     : num_samples + 1),
      WriteGroups{rows, gains, num_cells, scratch, groups, num_samples});
}

}  // namespace

const char* GroupBySample(Stream stream, const CooBuffers& buffers,
                          const CooGeometry& geometry,
                          const SampleGroupsScratch& scratch,
                          const SampleGroups& groups) {
  const int64_t num_samples =
      geometry.num_sc_per_device * geometry.batch_size_per_sc;
  const int64_t n = geometry.num_cells;
  if (const char* error = ReadPartitions(stream, buffers, geometry,
                                         scratch.partitions, groups.flaws)) {
    return error;
  }
  if (const char* error =
          Launch(stream, NumBlocks<ReadSamples>(n),
                 ReadSamples{buffers, geometry, scratch, groups.flaws,
                             static_cast<int32_t>(num_samples)})) {
    return error;
  }
  return SortAndWrite(stream, scratch.rows, buffers.gains, n, num_samples,
                      scratch, groups);
}

const char* GroupKnownBySample(Stream stream, const KnownEntries& entries,
                               int64_t num_samples,
                               const SampleGroupsScratch& scratch,
                               const SampleGroups& groups) {
  if (const char* error =
          Launch(stream, NumBlocks<CopySamples>(entries.num_cells),
                 CopySamples{entries, scratch.keys, scratch.cells})) {
    return error;
  }
  return SortAndWrite(stream, entries.rows, entries.gains, entries.num_cells,
                      num_samples, scratch, groups);
}

}  // namespace jte::gpu
