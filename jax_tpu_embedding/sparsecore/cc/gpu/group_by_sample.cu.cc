// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"

#include <cstdint>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {
namespace {

// Entries of a sample beyond which it is long: so many each entry is compared
// with, and so many runs are merged together. With more on average, a sort
// takes less time.
constexpr int64_t kMostCompared = 1024;

// With more, threads that look at all of few cells take longer than launches.
constexpr int64_t kFewSamples = 4096;

// The plan of few cells in one partition. A thread has a cell and a sample
// of the same number, and counts what comes before them.
struct GroupFewCells {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const Flaws known =
        FlawsOfPartitions(buffers, geometry, /*is_first=*/false, groups.flaws);
    const int64_t end = EndOfOnePartition(buffers, geometry, known);
    const int64_t num_samples = geometry.batch_size_per_sc;
    for (int64_t i = thread.number(); i <= num_samples || i < end;
         i += thread.num_threads()) {
      const int32_t sample = i < end ? Sample(i) : 0;
      int32_t begin = 0;
      int32_t place = 0;
      bool is_wrong = false;
      for (int64_t k = 0; k < end; ++k) {
        const int32_t other = Sample(k);
        begin += other < i;
        place += other < sample || (other == sample && k < i);
        // Without a branch, which the next loads would wait for.
        is_wrong |= (other != buffers.sample_ids[k]) |
                    (Row(k) != buffers.embedding_ids[k]);
      }
      if (i <= num_samples) groups.begins[i] = begin;
      if (i < end) {
        groups.rows[place] = Row(i);
        groups.gains[place] = buffers.gains[i];
      }
      if (i == 0) *groups.flaws = {known.partitions, is_wrong};
    }
  }

  JTE_DEVICE int32_t Sample(int64_t i) const {
    return InRange(buffers.sample_ids[i], geometry.batch_size_per_sc);
  }
  JTE_DEVICE int32_t Row(int64_t i) const {
    return InRange(buffers.embedding_ids[i], geometry.rows_per_shard);
  }
};

// What counts are added to, and what is noted.
struct Clear {
  static constexpr int kThreads = 256;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  int32_t* begins;
  Flaws* flaws;  // or null, to keep them

  JTE_DEVICE void operator()(const Thread& thread) const {
    for (int64_t s = thread.number(); s <= num_samples;
         s += thread.num_threads()) {
      begins[s] = 0;
    }
    if (thread.number() != 0) return;
    *scratch.has_long_samples = 0;
    if (flaws != nullptr) *flaws = {};
  }
};

// Sample and row of each cell, and which of the sample's entries it is in the
// order in which threads come. begins[s + 1]: how many sample s has.
template <bool kHasOnePartition>
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
    ForEachNumber(thread, geometry.num_cells, [&](const Numbers& numbers) {
      Cell cells[Numbers::kSize];
      ReadCells<kHasOnePartition>(numbers, buffers, geometry,
                                  scratch.partitions, known, cells);
      int32_t samples[Numbers::kSize];
      int32_t places[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        samples[k] = static_cast<int32_t>(num_samples);  // of no entry
        if (!cells[k].is_entry) continue;
        samples[k] = static_cast<int32_t>(
            cells[k].source * geometry.batch_size_per_sc + cells[k].sample);
        places[k] = thread.AtomicAdd(&groups.begins[samples[k] + 1], 1);
      }
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (!numbers.has(k)) continue;
        const int64_t i = numbers.number(k);
        scratch.samples[i] = samples[k];
        if (!cells[k].is_entry) continue;
        if (cells[k].is_wrong) groups.flaws->entries = 1;
        if (places[k] == kMostCompared) *scratch.has_long_samples = 1;
        scratch.places[i] = places[k];
        scratch.rows[i] =
            static_cast<int32_t>(cells[k].target % geometry.num_sc_per_device *
                                     geometry.rows_per_shard +
                                 cells[k].row);
      }
    });
  }
};

struct CopySamples {
  static constexpr int kThreads = 256;
  KnownEntries entries;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    ForEachNumber(thread, entries.num_cells, [&](const Numbers& numbers) {
      int32_t samples[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        // Those that are not below num_samples are none.
        const auto none = static_cast<int32_t>(num_samples);
        const int32_t sample = entries.samples[numbers.number_or_last(k)];
        samples[k] = numbers.has(k) && sample < none ? sample : none;
      }
      int32_t places[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (samples[k] < num_samples) {
          places[k] = thread.AtomicAdd(&groups.begins[samples[k] + 1], 1);
        }
      }
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (!numbers.has(k)) continue;
        scratch.samples[numbers.number(k)] = samples[k];
        if (samples[k] >= num_samples) continue;
        if (places[k] == kMostCompared) *scratch.has_long_samples = 1;
        scratch.places[numbers.number(k)] = places[k];
      }
    });
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
    ForEachNumber(thread, num_cells, [&](const Numbers& numbers) {
      int32_t samples[Numbers::kSize];
      int32_t places[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        const int64_t i = numbers.number_or_last(k);
        samples[k] = scratch.samples[i];
        places[k] = scratch.places[i];
      }
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        places[k] += groups.begins[samples[k]];
      }
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (!numbers.has(k) || samples[k] >= num_samples) continue;
        scratch.cells[places[k]] = static_cast<int32_t>(numbers.number(k));
      }
    });
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

// Cells in the order of samples. Those of a long sample are runs in order, of
// `width` cells but for the last; those of others are in any order.
struct Runs {
  const int32_t* cells;
  int64_t width;

  // The place of a cell among [begin, end), whole runs of its sample.
  JTE_DEVICE int64_t PlaceOf(int32_t cell, int64_t begin, int64_t end) const {
    int64_t place = begin;
    for (int64_t run = begin; run < end; run += width) {
      place += NumBelow(cell, run, run + width < end ? run + width : end);
    }
    return place;
  }

 private:
  JTE_DEVICE int64_t NumBelow(int32_t cell, int64_t run,
                              int64_t run_end) const {
    int64_t first = run;
    while (first < run_end) {
      const int64_t middle = (first + run_end) / 2;
      if (cells[middle] < cell) {
        first = middle + 1;
      } else {
        run_end = middle;
      }
    }
    return first - run;
  }
};

JTE_DEVICE bool IsLong(int64_t begin, int64_t end) {
  return end - begin > kMostCompared;
}

// Makes runs of kMostCompared times their width, and copies what is no run.
struct MergeRuns {
  static constexpr int kThreads = 256;
  Runs runs;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  const int32_t* begins;
  int32_t* merged;

  JTE_DEVICE void operator()(const Thread& thread) const {
    if (*scratch.has_long_samples == 0) return;
    const int64_t merged_width = kMostCompared * runs.width;
    const int64_t num_entries = begins[num_samples];
    for (int64_t i = thread.number(); i < num_entries;
         i += thread.num_threads()) {
      const int32_t cell = runs.cells[i];
      const int32_t sample = scratch.samples[cell];
      const int64_t begin = begins[sample];
      const int64_t end = begins[sample + 1];
      int64_t place = i;
      if (IsLong(begin, end)) {
        const int64_t run = begin + (i - begin) / merged_width * merged_width;
        const int64_t run_end = run + merged_width;
        place = runs.PlaceOf(cell, run, run_end < end ? run_end : end);
      }
      merged[place] = cell;
    }
  }
};

// Writes the entries of each sample in the order of their cells. Unless cells
// are in it, a thread counts how many come before its own.
template <bool kAreInOrder>
struct WriteGroups {
  static constexpr int kThreads = 256;
  // For which the registers of usual batches suffice.
  static constexpr int kMinBlocks = 5;
  Runs runs;  // if there are long samples
  const int32_t* cell_rows;
  const float* cell_gains;
  int64_t num_samples;
  SampleGroupsScratch scratch;
  SampleGroups groups;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t num_entries = groups.begins[num_samples];
    ForEachNumber(thread, num_entries, [&](const Numbers& numbers) {
      int32_t cells[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        cells[k] = scratch.cells[numbers.number_or_last(k)];
      }
      int32_t rows[Numbers::kSize];
      float gains[Numbers::kSize];
      int32_t samples[Numbers::kSize];
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        rows[k] = cell_rows[cells[k]];
        gains[k] = cell_gains[cells[k]];
        if constexpr (!kAreInOrder) samples[k] = scratch.samples[cells[k]];
      }
      int64_t places[Numbers::kSize];
      if constexpr (kAreInOrder) {
        JTE_UNROLL
        for (int k = 0; k < Numbers::kSize; ++k) places[k] = numbers.number(k);
      } else {
        FindPlaces(cells, samples, places);
      }
      JTE_UNROLL
      for (int k = 0; k < Numbers::kSize; ++k) {
        if (!numbers.has(k) || places[k] == kNoPlace) continue;
        groups.rows[places[k]] = rows[k];
        groups.gains[places[k]] = gains[k];
      }
    });
    if constexpr (!kAreInOrder) {
      if (*scratch.has_long_samples != 0) WriteLong(thread, num_entries);
    }
  }

 private:
  static constexpr int64_t kNoPlace = -1;  // here: of a long sample

  // Of cells, each among those of its sample.
  JTE_DEVICE void FindPlaces(const int32_t (&cells)[Numbers::kSize],
                             const int32_t (&samples)[Numbers::kSize],
                             int64_t (&places)[Numbers::kSize]) const {
    int32_t begins[Numbers::kSize];
    int32_t ends[Numbers::kSize];
    JTE_UNROLL
    for (int k = 0; k < Numbers::kSize; ++k) {
      begins[k] = groups.begins[samples[k]];
      ends[k] = groups.begins[samples[k] + 1];
    }
    JTE_UNROLL
    for (int k = 0; k < Numbers::kSize; ++k) {
      places[k] = IsLong(begins[k], ends[k]) ? kNoPlace : begins[k];
      if (places[k] == kNoPlace) continue;
      for (int32_t i = begins[k]; i < ends[k]; ++i) {
        places[k] += scratch.cells[i] < cells[k];
      }
    }
  }

  // Those of long samples, which few batches have, one at a time.
  JTE_DEVICE void WriteLong(const Thread& thread, int64_t num_entries) const {
    for (int64_t i = thread.number(); i < num_entries;
         i += thread.num_threads()) {
      const int32_t cell = runs.cells[i];
      const int32_t sample = scratch.samples[cell];
      const int64_t begin = groups.begins[sample];
      const int64_t end = groups.begins[sample + 1];
      if (!IsLong(begin, end)) continue;
      const int64_t place = runs.PlaceOf(cell, begin, end);
      groups.rows[place] = cell_rows[cell];
      groups.gains[place] = cell_gains[cell];
    }
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
  const auto write = [&]<typename Kernel>(Kernel kernel) {
    return Launch(stream, NumBlocksForNumbers<Kernel>(num_cells), kernel);
  };
  if (num_cells > kMostCompared * num_samples) {
    // No place is needed then. Rows are written after the sort, and room for
    // its keys until then.
    ToSort samples = {scratch.samples, groups.rows};
    ToSort cells = {scratch.places, scratch.cells};
    if (const char* error = Launch(stream, NumBlocks<NumberCells>(num_cells),
                                   NumberCells{num_cells, cells.values})) {
      return error;
    }
    if (const char* error = SortByKey(stream, num_cells, NumBits(num_samples),
                                      samples, cells, scratch.cub)) {
      return error;
    }
    SampleGroupsScratch sorted = scratch;
    sorted.cells = cells.values;
    return write(
        WriteGroups<true>{{}, rows, gains, num_samples, sorted, groups});
  }
  if (const char* error =
          Launch(stream, NumBlocksForNumbers<PlaceCells>(num_cells),
                 PlaceCells{num_cells, num_samples, scratch, groups})) {
    return error;
  }
  Runs runs = {scratch.cells, 1};
  int32_t* merged = scratch.places;  // which are not needed any more
  int32_t* next = scratch.cells;
  while (kMostCompared * runs.width < num_cells) {
    if (const char* error = Launch(
            stream, NumBlocksForNumbers<MergeRuns>(num_cells),
            MergeRuns{runs, num_samples, scratch, groups.begins, merged})) {
      return error;
    }
    runs = {merged, kMostCompared * runs.width};
    std::swap(merged, next);
  }
  return write(
      WriteGroups<false>{runs, rows, gains, num_samples, scratch, groups});
}

}  // namespace

const char* GroupBySample(Stream stream, const CooBuffers& buffers,
                          const CooGeometry& geometry,
                          const SampleGroupsScratch& scratch,
                          const SampleGroups& groups) {
  const int64_t num_samples =
      geometry.num_sc_per_device * geometry.batch_size_per_sc;
  const int64_t n = geometry.num_cells;
  if (HasOnePartition(geometry) && n <= kFewCells &&
      num_samples <= kFewSamples) {
    return Launch(
        stream, NumBlocks<GroupFewCells>(n > num_samples ? n : num_samples + 1),
        GroupFewCells{buffers, geometry, groups});
  }
  if (const char* error =
          Launch(stream, NumBlocks<Clear>(num_samples + 1),
                 Clear{num_samples, scratch, groups.begins, groups.flaws})) {
    return error;
  }
  if (const char* error = ReadPartitions(stream, buffers, geometry,
                                         scratch.partitions, groups.flaws)) {
    return error;
  }
  const auto read = [&]<typename Kernel>(Kernel kernel) {
    return Launch(stream, NumBlocksForNumbers<Kernel>(n), kernel);
  };
  const char* const error =
      HasOnePartition(geometry)
          ? read(ReadSamples<true>{buffers, geometry, num_samples, scratch,
                                   groups})
          : read(ReadSamples<false>{buffers, geometry, num_samples, scratch,
                                    groups});
  if (error != nullptr) return error;
  return PlaceAndWrite(stream, scratch.rows, buffers.gains, n, num_samples,
                       scratch, groups);
}

const char* GroupKnownBySample(Stream stream, const KnownEntries& entries,
                               int64_t num_samples,
                               const SampleGroupsScratch& scratch,
                               const SampleGroups& groups) {
  if (const char* error =
          Launch(stream, NumBlocks<Clear>(num_samples + 1),
                 Clear{num_samples, scratch, groups.begins, nullptr})) {
    return error;
  }
  if (const char* error =
          Launch(stream, NumBlocksForNumbers<CopySamples>(entries.num_cells),
                 CopySamples{entries, num_samples, scratch, groups})) {
    return error;
  }
  return PlaceAndWrite(stream, entries.rows, entries.gains, entries.num_cells,
                       num_samples, scratch, groups);
}

}  // namespace jte::gpu
