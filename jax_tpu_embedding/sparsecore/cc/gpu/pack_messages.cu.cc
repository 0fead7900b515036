// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/pack_messages.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {
namespace {

// A cell that is no entry is of this partition.
constexpr int32_t kNoPartition = -1;

// The partition of each cell, and whether its row is another one than that of
// the entry before it; equal rows are neighbours in a partition.
struct FindFirstOfRows {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  int64_t num_places;
  PackScratch scratch;
  PackedMessages messages;

  JTE_DEVICE void operator()(const Thread& thread) const {
    // Of the partitions alone: entries are what is looked at here.
    const Flaws known = {messages.flaws->partitions, 0};
    for (int64_t i = thread.number(); i < geometry.num_cells;
         i += thread.num_threads()) {
      const Cell cell =
          ReadCell(i, buffers, geometry, scratch.partitions, known);
      if (cell.is_wrong) messages.flaws->entries = 1;
      scratch.partitions_of_cells[i] =
          cell.is_entry ? cell.partition : kNoPartition;
      scratch.are_first[i] = cell.is_entry && IsFirst(i, cell, known);
      messages.samples[i] = static_cast<int32_t>(
          cell.is_entry
              ? cell.source * geometry.batch_size_per_sc + cell.sample
              : geometry.num_sc_per_device * geometry.batch_size_per_sc);
    }
    for (int64_t place = thread.number(); place < num_places;
         place += thread.num_threads()) {
      messages.requests[place] = kNoRow;
    }
  }

  JTE_DEVICE bool IsFirst(int64_t i, const Cell& cell,
                          const Flaws& known) const {
    const Cells cells =
        CellsOf(cell.partition, geometry, scratch.partitions, known);
    return i == cells.begin || InRange(buffers.embedding_ids[i - 1],
                                       geometry.rows_per_shard) != cell.row;
  }
};

// A tile has an owner, and each of its threads one of the owner's partitions at
// a time, in their order: what is to be added to the number of first entries up
// to one for its place, and one. A thread reads two numbers of a partition,
// which are neighbours of the next thread's where several SparseCores of the
// owner follow each other, and then two numbers of cells, anywhere.
struct FindOffsets {
  static constexpr int kThreads = 32;
  static constexpr int kLanes = 32;
  static constexpr bool kExchanges = true;
  CooBuffers buffers;
  CooGeometry geometry;
  int64_t capacity;
  PackScratch scratch;
  PackedMessages messages;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const Flaws known = {messages.flaws->partitions, 0};
    const int64_t num_sources = geometry.num_sc_per_device;
    const int64_t num_partitions = NumBlocksInUse(known) * num_sources;
    const int lane = thread.index() % kLanes;
    for (int64_t owner = thread.block(); owner < geometry.num_devices;
         owner += thread.num_blocks()) {
      int32_t num_rows = 0;
      for (int64_t first = 0; first < num_partitions; first += kLanes) {
        const int64_t i = first + lane;
        const int64_t p = i / num_sources * geometry.num_targets() +
                          owner * num_sources + i % num_sources;
        int32_t before = 0;
        int32_t rows_of_all = 0;  // of this partition and those of lanes before
        if (i < num_partitions) {
          const Cells cells = CellsOf(p, geometry, scratch.partitions, known);
          before = NumFirstBefore(cells.begin);
          if (cells.begin < cells.end) {
            rows_of_all = NumFirstBefore(cells.end) - before;
          }
        }
        const int32_t rows = rows_of_all;
        JTE_UNROLL
        for (int distance = 1; distance < kLanes; distance *= 2) {
          const int32_t others = thread.Shuffle(
              rows_of_all, lane < distance ? lane : lane - distance, kLanes);
          if (lane >= distance) rows_of_all += others;
        }
        if (i < num_partitions) {
          scratch.offsets[p] = num_rows + rows_of_all - rows - before;
        }
        num_rows += thread.Shuffle(rows_of_all, kLanes - 1, kLanes);
      }
      // Others read what partitions are while this is written.
      if (lane == 0 && num_rows > capacity) messages.flaws->entries = 1;
    }
  }

  JTE_DEVICE int64_t NumBlocksInUse(const Flaws& known) const {
    if (known.partitions != 0) return geometry.num_regions();
    const int64_t minibatches =
        geometry.enable_minibatching ? *buffers.num_minibatches : 1;
    return geometry.num_sc_per_device * minibatches;
  }

  JTE_DEVICE int32_t NumFirstBefore(int64_t cell) const {
    return cell > 0 ? scratch.num_first[cell - 1] : 0;
  }
};

struct WriteMessages {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  int64_t capacity;
  PackScratch scratch;
  PackedMessages messages;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const bool are_corrupt = messages.flaws->any();
    for (int64_t i = thread.number(); i < geometry.num_cells;
         i += thread.num_threads()) {
      const int32_t p = scratch.partitions_of_cells[i];
      if (p == kNoPartition) {
        messages.places[i] =
            static_cast<int32_t>(geometry.num_devices * capacity);
        messages.gains[i] = 0.0f;
        continue;
      }
      const int64_t target = p % geometry.num_targets();
      const int64_t first_place =
          target / geometry.num_sc_per_device * capacity;
      const int64_t place = scratch.offsets[p] + scratch.num_first[i] - 1;
      if (scratch.are_first[i] && place < capacity) {
        messages.requests[first_place + place] = static_cast<int32_t>(
            target % geometry.num_sc_per_device * geometry.rows_per_shard +
            InRange(buffers.embedding_ids[i], geometry.rows_per_shard));
      }
      messages.places[i] = static_cast<int32_t>(
          first_place + (place < capacity ? place : capacity - 1));
      messages.gains[i] = are_corrupt ? __builtin_nanf("") : buffers.gains[i];
    }
  }
};

}  // namespace

const char* PackMessages(Stream stream, const CooBuffers& buffers,
                         const CooGeometry& geometry, int64_t capacity,
                         const PackScratch& scratch,
                         const PackedMessages& messages) {
  // Nobody sends to itself, and ReadPartitions writes nothing of one.
  if (HasOnePartition(geometry)) {
    return "One SparseCore of one device has no messages to pack. Group its "
           "buffers by sample and by row.";
  }
  const int64_t n = geometry.num_cells;
  const int64_t num_places = geometry.num_devices * capacity;
  if (const char* error =
          FillWithZeros(stream, messages.flaws, sizeof(Flaws))) {
    return error;
  }
  if (const char* error = ReadPartitions(stream, buffers, geometry,
                                         scratch.partitions, messages.flaws)) {
    return error;
  }
  if (const char* error = Launch(
          stream, NumBlocks<FindFirstOfRows>(n > num_places ? n : num_places),
          FindFirstOfRows{buffers, geometry, num_places, scratch, messages})) {
    return error;
  }
  if (const char* error = SumUpTo(stream, n, scratch.are_first,
                                  scratch.num_first, scratch.sort)) {
    return error;
  }
  if (const char* error =
          Launch(stream,
                 NumBlocks<FindOffsets>(geometry.num_devices *
                                        int64_t{FindOffsets::kLanes}),
                 FindOffsets{buffers, geometry, capacity, scratch, messages})) {
    return error;
  }
  return Launch(stream, NumBlocks<WriteMessages>(n),
                WriteMessages{buffers, geometry, capacity, scratch, messages});
}

}  // namespace jte::gpu
