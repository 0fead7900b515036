// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/convert_ids.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::gpu {
namespace {

// What is added to, and cells without entries.
struct Clear {
  static constexpr int kThreads = 256;
  int64_t num_cells;
  int64_t num_features;
  ConversionErrors errors;
  ConvertedIds buffers;

  JTE_DEVICE void operator()(const Thread& thread) const {
    if (thread.number() == 0) *errors.any = 0;
    for (int64_t f = thread.number(); f < num_features;
         f += thread.num_threads()) {
      errors.row_splits[f] = 0;
    }
    for (int64_t i = thread.number(); i < num_cells;
         i += thread.num_threads()) {
      buffers.embedding_ids[i] = kPaddingId;
      buffers.sample_ids[i] = kPaddingId;
      buffers.gains[i] = 0.0f;  // no NaN, so that jax_debug_nans finds others
    }
  }
};

// A word of each key, in an order that the words below it have decided.
struct ReadKeys {
  static constexpr int kThreads = 256;
  Occurrences occurrences;
  ConversionGeometry geometry;
  int64_t num_ids;
  int word;
  const int32_t* order;
  int32_t* keys;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < num_ids; i += thread.num_threads()) {
      const int32_t id = order[i];
      keys[i] = SortWord(geometry, occurrences.blocks[id], occurrences.rows[id],
                         word);
    }
  }
};

// Occurrences in their order.
struct SortedOccurrences {
  Occurrences occurrences;
  const int32_t* order;
  int64_t num_ids;
  int64_t num_blocks;

  JTE_DEVICE int32_t Block(int64_t i) const {
    return occurrences.blocks[order[i]];
  }
  JTE_DEVICE int32_t Row(int64_t i) const { return occurrences.rows[order[i]]; }
  JTE_DEVICE int32_t Sample(int64_t i) const {
    return occurrences.samples[order[i]];
  }
  JTE_DEVICE float Gain(int64_t i) const { return occurrences.gains[order[i]]; }

  // Whether it is the same row of the same sample as the one before it.
  JTE_DEVICE bool IsRepeat(int64_t i) const {
    return i > 0 && Block(i) == Block(i - 1) && Row(i) == Row(i - 1) &&
           Sample(i) == Sample(i - 1);
  }

  JTE_DEVICE bool IsEntry(int64_t i) const {
    return Block(i) < num_blocks && !IsRepeat(i);
  }

  // The first of a block or of those behind it.
  JTE_DEVICE int64_t FirstOf(int64_t block) const {
    int64_t first = 0;
    int64_t last = num_ids;
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      if (Block(middle) < block) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }
};

struct MarkEntries {
  static constexpr int kThreads = 256;
  SortedOccurrences sorted;
  int32_t* are_entries;

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t i = thread.number(); i < sorted.num_ids;
         i += thread.num_threads()) {
      are_entries[i] = sorted.IsEntry(i);
    }
  }
};

// A thread has a block: how many entries there are before it, and the cells
// that its own take. The threads of one tile sum these too, if they have all.
struct CountCells {
  static constexpr int kThreads = 128;
  static constexpr bool kExchanges = true;
  static constexpr int kLanes = 32;
  SortedOccurrences sorted;
  const int32_t* num_entries;  // up to each occurrence
  int32_t* first_entries;
  int32_t* cells;
  int32_t* ends;

  static constexpr bool SumsCells(int64_t num_blocks) {
    return num_blocks <= kLanes;
  }

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t block = thread.number(); block <= sorted.num_blocks;
         block += thread.num_threads()) {
      const int32_t first = NumEntriesBefore(sorted.FirstOf(block));
      first_entries[block] = first;
      if (block == sorted.num_blocks) continue;
      const int32_t end = NumEntriesBefore(sorted.FirstOf(block + 1));
      cells[block] = RoundUp(end - first, static_cast<int32_t>(kAlignment));
    }
    if (SumsCells(sorted.num_blocks) && thread.number() < kLanes) {
      SumCells(thread);
    }
  }

  JTE_DEVICE int32_t NumEntriesBefore(int64_t i) const {
    return i > 0 ? num_entries[i - 1] : 0;
  }

  JTE_DEVICE void SumCells(const Thread& thread) const {
    const int lane = thread.index();
    int32_t end = lane < sorted.num_blocks ? cells[lane] : 0;
    JTE_UNROLL
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const int32_t before =
          thread.Shuffle(end, lane < distance ? lane : lane - distance, kLanes);
      if (lane >= distance) end += before;
    }
    if (lane < sorted.num_blocks) ends[lane] = end;
  }
};

// Where the entries of a block begin, counted from the begin of their region.
struct BlockBegins {
  int64_t num_shards;
  const int32_t* cells;
  const int32_t* ends;  // of cells, of all blocks one after the other

  JTE_DEVICE int32_t operator()(int64_t block) const {
    const int64_t first_of_region = block / num_shards * num_shards;
    const int32_t before = first_of_region > 0 ? ends[first_of_region - 1] : 0;
    return ends[block] - cells[block] - before;
  }
};

// Row pointers and entries. A thread has an occurrence: the first of an entry
// adds its repeats, in order.
struct WriteBuffers {
  static constexpr int kThreads = 256;
  SortedOccurrences sorted;
  ConversionGeometry geometry;
  BlockBegins begins;
  const int32_t* num_entries;
  const int32_t* first_entries;
  int32_t error_mark;
  const int32_t* any_error;
  ConvertedIds buffers;

  constexpr int64_t num_row_pointers() const {
    return geometry.num_sc_per_device * geometry.row_pointers_per_block;
  }

  JTE_DEVICE void operator()(const Thread& thread) const {
    WriteRowPointers(thread);
    for (int64_t i = thread.number(); i < sorted.num_ids;
         i += thread.num_threads()) {
      if (sorted.IsEntry(i)) WriteEntry(i);
    }
  }

  JTE_DEVICE void WriteRowPointers(const Thread& thread) const {
    const bool have_failed = error_mark != 0 && *any_error != 0;
    for (int64_t i = thread.number(); i < num_row_pointers();
         i += thread.num_threads()) {
      if (have_failed) {
        buffers.row_pointers[i] = i == 0 ? error_mark : 0;
      } else {
        buffers.row_pointers[i] =
            RowPointer(i / geometry.row_pointers_per_block,
                       i % geometry.row_pointers_per_block);
      }
    }
  }

  // The end of a shard's partition; behind these, of all cells that they take.
  JTE_DEVICE int32_t RowPointer(int64_t sc, int64_t shard) const {
    const int64_t first = sc * geometry.num_shards;
    if (shard >= geometry.num_shards) {
      const int64_t last = first + geometry.num_shards - 1;
      return begins(last) + begins.cells[last];
    }
    const int64_t block = first + shard;
    return begins(block) + first_entries[block + 1] - first_entries[block];
  }

  JTE_DEVICE void WriteEntry(int64_t i) const {
    float gain = sorted.Gain(i);
    for (int64_t k = i + 1; k < sorted.num_ids && sorted.IsRepeat(k); ++k) {
      gain += sorted.Gain(k);
    }
    const int32_t block = sorted.Block(i);
    const int64_t cell = block / geometry.num_shards * geometry.cells_per_sc +
                         begins(block) + num_entries[i] - 1 -
                         first_entries[block];
    buffers.embedding_ids[cell] = sorted.Row(i);
    buffers.sample_ids[cell] = sorted.Sample(i);
    buffers.gains[cell] = gain;
  }
};

// Sorts by the words of keys, the lowest first, which is there already. `order`
// becomes that of the occurrences.
const char* Sort(Stream stream, int64_t num_ids,
                 const ConversionGeometry& geometry,
                 const ConversionScratch& scratch, ToSort& keys,
                 ToSort& order) {
  // The largest key is that of what is left out: row 0 of one block more.
  const int num_bits = NumBits(geometry.num_sc_per_device *
                               geometry.num_shards * geometry.rows_per_shard);
  for (int word = 0; word * kSortWordBits < num_bits; ++word) {
    if (word > 0) {
      if (const char* error =
              Launch(stream, NumBlocks<ReadKeys>(num_ids),
                     ReadKeys{scratch.occurrences, geometry, num_ids, word,
                              order.values, keys.values})) {
        return error;
      }
    }
    if (const char* error =
            SortByKey(stream, num_ids,
                      std::min(num_bits - word * kSortWordBits, kSortWordBits),
                      keys, order, scratch.sort)) {
      return error;
    }
  }
  return nullptr;
}

}  // namespace

const char* ConvertIds(Stream stream, std::span<const RawIds> features,
                       const ConversionGeometry& geometry, int32_t error_mark,
                       const ConversionScratch& scratch,
                       const ConvertedIds& buffers) {
  int64_t num_ids = 0;
  for (const RawIds& feature : features) num_ids += feature.num_ids;
  const auto num_features = static_cast<int64_t>(features.size());
  const int64_t num_blocks = geometry.num_sc_per_device * geometry.num_shards;
  const int64_t num_cells = geometry.num_sc_per_device * geometry.cells_per_sc;

  if (const char* error =
          Launch(stream, NumBlocks<Clear>(std::max(num_cells, num_features)),
                 Clear{num_cells, num_features, scratch.errors, buffers})) {
    return error;
  }
  if (const char* error =
          FindOccurrences(stream, features, geometry, scratch.factors,
                          scratch.errors, scratch.occurrences)) {
    return error;
  }
  ToSort keys = {scratch.occurrences.keys, scratch.other_keys};
  ToSort order = {scratch.occurrences.order, scratch.other_order};
  if (const char* error =
          Sort(stream, num_ids, geometry, scratch, keys, order)) {
    return error;
  }
  const SortedOccurrences sorted{scratch.occurrences, order.values, num_ids,
                                 num_blocks};
  // Keys are not needed any more.
  int32_t* const are_entries = keys.values;
  int32_t* const num_entries = keys.others;
  if (const char* error = Launch(stream, NumBlocks<MarkEntries>(num_ids),
                                 MarkEntries{sorted, are_entries})) {
    return error;
  }
  if (const char* error =
          SumUpTo(stream, num_ids, are_entries, num_entries, scratch.sort)) {
    return error;
  }
  if (const char* error =
          Launch(stream, NumBlocks<CountCells>(num_blocks + 1),
                 CountCells{sorted, num_entries, scratch.first_entries,
                            scratch.cells, scratch.ends})) {
    return error;
  }
  if (!CountCells::SumsCells(num_blocks)) {
    if (const char* error = SumUpTo(stream, num_blocks, scratch.cells,
                                    scratch.ends, scratch.sort)) {
      return error;
    }
  }
  const BlockBegins begins{geometry.num_shards, scratch.cells, scratch.ends};
  const WriteBuffers write{sorted,
                           geometry,
                           begins,
                           num_entries,
                           scratch.first_entries,
                           error_mark,
                           scratch.errors.any,
                           buffers};
  return Launch(
      stream,
      NumBlocks<WriteBuffers>(std::max(num_ids, write.num_row_pointers())),
      write);
}

}  // namespace jte::gpu
