// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {
namespace {

// Entries of a sample, on average, from which on a sort takes less time than
// counting: that grows with their square.
constexpr int64_t kManyEntries = 1024;

// Sample and row of each cell, and which of the sample's entries it is in the
// order in which threads come. begins[s + 1]: how many sample s has.
struct ReadSamples {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    // Of the partitions alone: entries are what is looked at here.
    const Flaws known = FlawsOfPartitions(buffers, geometry,
                                          thread.number() == 0, groups.flaws);
    for (int64_t i = thread.number(); i < geometry.num_cells;
         i += thread.num_threads()) {
      const Cell cell =
          ReadCell(i, buffers, geometry, scratch.partitions, known);
      if (cell.is_wrong) groups.flaws->entries = 1;
      int32_t sample = static_cast<int32_t>(num_samples);  // of no entry
      if (cell.is_entry) {
        sample = static_cast<int32_t>(cell.source * geometry.batch_size_per_sc +
                                      cell.sample);
        scratch.rows[i] = static_cast<int32_t>(
            cell.target % geometry.num_sc_per_device * geometry.rows_per_shard +
            cell.row);
        scratch.places[i] = thread.AtomicAdd(&groups.begins[sample + 1], 1);
      }
      scratch.samples[i] = sample;
    }
  }
};

struct CopySamples {
  static constexpr int kThreads = 256;
  KnownEntries entries;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < entries.num_cells;
         i += thread.num_threads()) {
      const int32_t sample = entries.samples[i];
      scratch.samples[i] = sample;
      if (sample < num_samples) {
        scratch.places[i] = thread.AtomicAdd(&groups.begins[sample + 1], 1);
      }
    }
  }
};

// Puts cells where those of their sample are, in any order.
struct PlaceCells {
  static constexpr int kThreads = 256;
  int64_t num_cells;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < num_cells;
         i += thread.num_threads()) {
      const int32_t sample = scratch.samples[i];
      if (sample >= num_samples) continue;
      scratch.cells[groups.begins[sample] + scratch.places[i]] =
          static_cast<int32_t>(i);
    }
  }
};

struct NumberCells {
  static constexpr int kThreads = 256;
  int64_t num_cells;
  int32_t* numbers;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < num_cells;
         i += thread.num_threads()) {
      numbers[i] = static_cast<int32_t>(i);
    }
  }
};

// Writes the entries of each sample in the order of their cells. Unless cells
// are in it, a thread counts how many come before its own.
struct WriteGroups {
  static constexpr int kThreads = 256;
  const int32_t* cell_rows;
  const float* cell_gains;
  int64_t num_samples;
  bool are_in_order;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const bool are_corrupt = groups.flaws->any();
    const int64_t num_entries = groups.begins[num_samples];
    for (int64_t i = thread.number(); i < num_entries;
         i += thread.num_threads()) {
      const int32_t cell = scratch.cells[i];
      const int64_t place = are_in_order ? i : Place(cell);
      groups.rows[place] = cell_rows[cell];
      groups.gains[place] = are_corrupt ? __builtin_nanf("") : cell_gains[cell];
    }
  }

  JTE_DEVICE int32_t Place(int32_t cell) const {
    const int32_t sample = scratch.samples[cell];
    const int32_t begin = groups.begins[sample];
    const int32_t end = groups.begins[sample + 1];
    int32_t place = begin;
    for (int32_t k = begin; k < end; ++k) place += scratch.cells[k] < cell;
    return place;
  }
};

// Once samples and places of cells are known, and begins counts them.
const char* PlaceAndWrite(Stream stream, const int32_t* rows,
                          const float* gains, int64_t num_cells,
                          int64_t num_samples,
                          const SampleGroupsScratch& scratch,
                          const SampleGroups& groups) {
  if (const char* error = SumUpTo(stream, num_samples, groups.begins + 1,
                                  groups.begins + 1, scratch.cub)) {
    return error;
  }
  const bool are_many = num_cells > kManyEntries * num_samples;
  if (are_many) {
    int32_t* const numbers = scratch.places;  // no place is needed then
    if (const char* error = Launch(stream, NumBlocks<NumberCells>(num_cells),
                                   NumberCells{num_cells, numbers})) {
      return error;
    }
    // Rows are written after the sort, and room for its keys until then.
    if (const char* error = SortByKey(
            stream, num_cells, NumBits(num_samples), scratch.samples, numbers,
            /*sorted_keys=*/groups.rows, scratch.cells, scratch.cub)) {
      return error;
    }
  } else if (const char* error =
                 Launch(stream, NumBlocks<PlaceCells>(num_cells),
                        PlaceCells{num_cells, num_samples, scratch, groups})) {
    return error;
  }
  return Launch(
      stream, NumBlocks<WriteGroups>(num_cells),
      WriteGroups{rows, gains, num_samples, are_many, scratch, groups});
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
          FillWithZeros(stream, groups.begins,
                        (num_samples + 1) * sizeof(groups.begins[0]))) {
    return error;
  }
  if (const char* error = Launch(
          stream, NumBlocks<ReadSamples>(n),
          ReadSamples{buffers, geometry, num_samples, scratch, groups})) {
    return error;
  }
  return PlaceAndWrite(stream, scratch.rows, buffers.gains, n, num_samples,
                       scratch, groups);
}

const char* GroupKnownBySample(Stream stream, const KnownEntries& entries,
                               int64_t num_samples,
                               const SampleGroupsScratch& scratch,
                               const SampleGroups& groups) {
  if (const char* error =
          FillWithZeros(stream, groups.begins,
                        (num_samples + 1) * sizeof(groups.begins[0]))) {
    return error;
  }
  if (const char* error =
          Launch(stream, NumBlocks<CopySamples>(entries.num_cells),
                 CopySamples{entries, num_samples, scratch, groups})) {
    return error;
  }
  return PlaceAndWrite(stream, entries.rows, entries.gains, entries.num_cells,
                       num_samples, scratch, groups);
}

}  // namespace jte::gpu
