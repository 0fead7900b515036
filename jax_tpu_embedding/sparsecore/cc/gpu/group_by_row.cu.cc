// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"

#include <cstdint>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {
namespace {

// A row behind the last.
constexpr int32_t NoRow(const CooGeometry& geometry) {
  return static_cast<int32_t>(geometry.num_sc_per_device *
                              geometry.rows_per_shard);
}

// Row and sample of each cell. One that is no entry has a row behind the last.
template <bool kHasOnePartition>
struct ReadRowsAndSamples {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  Partitions partitions;
  Flaws* flaws;
  int32_t* rows;
  int32_t* samples;
  int32_t* cells;  // their numbers; not of one partition, which is sorted

  JTE_DEVICE void operator()(const Thread& thread) const {
    // Of the partitions alone: entries are what is looked at here.
    const Flaws known =
        FlawsOfPartitions(buffers, geometry, thread.number() == 0, flaws);
    ForEachNumber(thread, geometry.num_cells, [&](const Numbers& numbers) {
      int32_t rows_before[Numbers::kSize];
      if constexpr (kHasOnePartition) {
        JTE_UNROLL
        for (int k = 0; k < Numbers::kSize; ++k) {
          const int64_t i = numbers.number_or_last(k);
          rows_before[k] = buffers.embedding_ids[i > 0 ? i - 1 : 0];
        }
      }
      Cell read[Numbers::kSize];
      ReadCells<kHasOnePartition>(numbers, buffers, geometry, partitions, known,
                                  read);
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (!numbers.has(k)) continue;
        const int64_t i = numbers.number(k);
        const Cell& cell = read[k];
        rows[i] = cell.is_entry ? static_cast<int32_t>(
                                      cell.target % geometry.num_sc_per_device *
                                          geometry.rows_per_shard +
                                      cell.row)
                                : NoRow(geometry);
        samples[i] = static_cast<int32_t>(
            cell.source * geometry.batch_size_per_sc + cell.sample);
        bool is_wrong = cell.is_wrong;
        if constexpr (kHasOnePartition) {
          // Entries that are not sorted here have to come in order.
          is_wrong |=
              cell.is_entry &&
              cell.row < InRange(rows_before[k], geometry.rows_per_shard);
        } else {
          cells[i] = static_cast<int32_t>(i);
        }
        if (is_wrong) flaws->entries = 1;
      }
    });
  }
};

// The plan of few cells in one partition, which has them in the order of rows.
// A thread has a cell, and counts the rows that begin before it.
struct GroupFewCells {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  RowGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const Flaws known = FlawsOfPartitions(buffers, geometry, /*is_first=*/false,
                                          &groups.counts->flaws);
    const int64_t n = geometry.num_cells;
    const int64_t end = EndOfOnePartition(buffers, geometry, known);
    for (int64_t i = thread.number(); i <= n; i += thread.num_threads()) {
      int32_t num_rows = 0;
      int32_t last_row = -1;
      bool is_wrong = false;
      for (int64_t k = 0; k < i && k < end; ++k) {
        const int32_t row = Row(k);
        num_rows += row != last_row;
        // Without a branch, which the next loads would wait for.
        is_wrong |= (row != buffers.embedding_ids[k]) |
                    (Sample(k) != buffers.sample_ids[k]) | (row < last_row);
        last_row = row;
      }
      // A row begins there, or the last one ends.
      if (i < end ? Row(i) != last_row : i == end) {
        groups.starts[num_rows] = static_cast<int32_t>(i);
      }
      if (i < n) {
        groups.rows[i] = i < end ? Row(i) : NoRow(geometry);
        groups.samples[i] = i < end ? Sample(i) : 0;
      } else {
        *groups.counts = {num_rows + 1, 0, 0, {known.partitions, is_wrong}};
      }
    }
  }

  JTE_DEVICE int32_t Row(int64_t i) const {
    return InRange(buffers.embedding_ids[i], geometry.rows_per_shard);
  }
  JTE_DEVICE int32_t Sample(int64_t i) const {
    return InRange(buffers.sample_ids[i], geometry.batch_size_per_sc);
  }
};

struct ReadNumbers {
  static constexpr int kThreads = 256;
  RowNumbers numbers;
  int32_t* keys;
  int32_t* cells;
  GroupCounts* counts;

  JTE_DEVICE void operator()(const Thread& thread) const {
    if (thread.number() == 0) *counts = {};
    for (int64_t i = thread.number(); i < numbers.size;
         i += thread.num_threads()) {
      const int32_t row = numbers.rows[i];
      const bool is_row = numbers.min_row <= row && row < numbers.max_row;
      keys[i] = is_row ? row : static_cast<int32_t>(numbers.max_row);
      cells[i] = static_cast<int32_t>(i);
    }
  }
};

// The samples of cells that are sorted; and cells and their rows, if the sort
// left them in other arrays.
struct WriteSorted {
  static constexpr int kThreads = 256;
  const int32_t* rows;
  const int32_t* cells;
  const int32_t* unsorted_samples;  // null: those of cells are their numbers
  int64_t n;
  RowGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < n; i += thread.num_threads()) {
      const int32_t cell = cells[i];
      groups.samples[i] =
          unsorted_samples != nullptr ? unsorted_samples[cell] : cell;
      if (cells != groups.cells) groups.cells[i] = cell;
      if (rows != groups.rows) groups.rows[i] = rows[i];
    }
  }
};

// A tile has a row; those that are long it cuts into blocks.
struct CutLongRows {
  static constexpr int kThreads = 256;
  static constexpr bool kExchanges = true;
  static constexpr int kLanes = 32;
  int64_t batch_size_per_sc;
  int32_t block_size;
  RowGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t num_rows = groups.counts->num_rows();
    // A thread looks at a row, and the tile at those that its threads found.
    for (int64_t first = thread.number() / kLanes * kLanes; first < num_rows;
         first += thread.num_threads()) {
      const int64_t row = first + thread.index() % kLanes;
      const bool is_long =
          row < num_rows &&
          groups.starts[row + 1] - groups.starts[row] > block_size;
      if (!thread.Any(is_long, kLanes)) continue;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (thread.Shuffle(static_cast<int32_t>(is_long), lane, kLanes)) {
          Cut(thread, first + lane);
        }
      }
    }
  }

  JTE_DEVICE void Cut(const Thread& thread, int64_t row) const {
    const int32_t begin = groups.starts[row];
    const int32_t end = groups.starts[row + 1];
    int32_t num_blocks = 0;
    for (int32_t i = begin; i < end;) {
      const int32_t source_end = SourceEnd(i, end);
      num_blocks += (source_end - i + block_size - 1) / block_size;
      i = source_end;
    }
    const int lane = thread.index() % kLanes;
    int32_t next = 0;
    if (lane == 0) {
      next = thread.AtomicAdd(&groups.counts->num_blocks, num_blocks);
      const int place = thread.AtomicAdd(&groups.counts->num_long_rows, 1);
      groups.long_rows[place] = {static_cast<int32_t>(row), next, num_blocks,
                                 0};
    }
    next = thread.Shuffle(next, 0, kLanes);
    for (int32_t i = begin; i < end;) {
      const int32_t source_end = SourceEnd(i, end);
      const int32_t count = (source_end - i + block_size - 1) / block_size;
      for (int32_t k = lane; k < count; k += kLanes) {
        const int32_t first = i + k * block_size;
        const int32_t last = first + block_size;
        groups.blocks[next + k] = {first, last < source_end ? last : source_end,
                                   Source(i), 0};
      }
      next += count;
      i = source_end;
    }
  }

  JTE_DEVICE int32_t Source(int32_t i) const {
    return static_cast<int32_t>(groups.samples[i] / batch_size_per_sc);
  }

  // One past the last entry before `end` that is from the source of entry i.
  // Those of a row are in the order of sources.
  JTE_DEVICE int32_t SourceEnd(int32_t i, int32_t end) const {
    const int32_t source = Source(i);
    int32_t first = i + 1;
    while (first < end) {
      const int32_t middle = first + (end - first) / 2;
      if (Source(middle) == source) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    return first;
  }
};

// Sorts keys and cells to rows and cells, and writes their samples.
const char* SortCells(Stream stream, int64_t n, int num_bits,
                      const RowGroupsScratch& scratch,
                      const int32_t* unsorted_samples,
                      const RowGroups& groups) {
  ToSort rows = {scratch.keys, groups.rows};
  ToSort cells = {scratch.unsorted_cells, groups.cells};
  if (const char* error =
          SortByKey(stream, n, num_bits, rows, cells, scratch.sort)) {
    return error;
  }
  return Launch(
      stream, NumBlocks<WriteSorted>(n),
      WriteSorted{rows.values, cells.values, unsorted_samples, n, groups});
}

// Once rows and samples are in their order.
const char* FindGroups(Stream stream, int64_t n, int32_t no_row,
                       int64_t batch_size_per_sc, int64_t block_size,
                       Scratch scratch, const RowGroups& groups) {
  if (const char* error =
          FindRuns(stream, n, groups.rows, no_row, groups.starts,
                   &groups.counts->num_starts, scratch)) {
    return error;
  }
  if (MaxLongRows(n, block_size) == 0) return nullptr;
  return Launch(
      stream, NumBlocks<CutLongRows>(n),
      CutLongRows{batch_size_per_sc, static_cast<int32_t>(block_size), groups});
}

}  // namespace

const char* GroupByRow(Stream stream, const CooBuffers& buffers,
                       const CooGeometry& geometry, int64_t block_size,
                       const RowGroupsScratch& scratch,
                       const RowGroups& groups) {
  const int64_t n = geometry.num_cells;
  const bool is_sorted = HasOnePartition(geometry);
  if (is_sorted && n <= kFewCells && MaxLongRows(n, block_size) == 0) {
    return Launch(stream, NumBlocks<GroupFewCells>(n + 1),
                  GroupFewCells{buffers, geometry, groups});
  }
  Flaws* const flaws = &groups.counts->flaws;
  if (const char* error =
          FillWithZeros(stream, groups.counts, sizeof(GroupCounts))) {
    return error;
  }
  if (const char* error = ReadPartitions(stream, buffers, geometry,
                                         scratch.partitions, flaws)) {
    return error;
  }
  const auto read = [&]<typename Kernel>(Kernel kernel) {
    return Launch(stream, NumBlocksForNumbers<Kernel>(n), kernel);
  };
  const char* const error =
      is_sorted
          ? read(ReadRowsAndSamples<true>{buffers,
                                          geometry,
                                          {},
                                          flaws,
                                          groups.rows,
                                          groups.samples,
                                          nullptr})
          : read(ReadRowsAndSamples<false>{
                buffers, geometry, scratch.partitions, flaws, scratch.keys,
                scratch.unsorted_samples, scratch.unsorted_cells});
  if (error != nullptr) return error;
  if (!is_sorted) {
    if (const char* error = SortCells(
            stream, n,
            NumBits(geometry.num_sc_per_device * geometry.rows_per_shard),
            scratch, scratch.unsorted_samples, groups)) {
      return error;
    }
  }
  return FindGroups(stream, n, NoRow(geometry), geometry.batch_size_per_sc,
                    block_size, scratch.sort, groups);
}

const char* GroupRows(Stream stream, const RowNumbers& numbers,
                      int64_t block_size, const RowGroupsScratch& scratch,
                      const RowGroups& groups) {
  const int64_t n = numbers.size;
  if (const char* error =
          Launch(stream, NumBlocks<ReadNumbers>(n > 0 ? n : 1),
                 ReadNumbers{numbers, scratch.keys, scratch.unsorted_cells,
                             groups.counts})) {
    return error;
  }
  if (const char* error = SortCells(
          stream, n, numbers.min_row < 0 ? 32 : NumBits(numbers.max_row),
          scratch, numbers.samples, groups)) {
    return error;
  }
  return FindGroups(stream, n, static_cast<int32_t>(numbers.max_row),
                    /*batch_size_per_sc=*/std::numeric_limits<int64_t>::max(),
                    block_size, scratch.sort, groups);
}

}  // namespace jte::gpu
