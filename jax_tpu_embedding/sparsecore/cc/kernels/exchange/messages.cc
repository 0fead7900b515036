// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/buffers_or_nan.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_ranges.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::kernels {

namespace {

// Rows that a task copies or clears: some hundred KiB.
constexpr int64_t kPlacesPerTask = 1024;

// One comparison for both ends of the range.
[[gnu::always_inline]] inline bool InRange(int32_t value, int64_t limit) {
  return static_cast<uint32_t>(value) < static_cast<uint64_t>(limit);
}

// Equal ids are neighbours in a partition.
[[gnu::always_inline]] inline bool IsFirstOfRow(const CooBuffers& buffers,
                                                const Piece& piece, int64_t i) {
  return i == piece.partition.begin ||
         buffers.embedding_ids[i] != buffers.embedding_ids[i - 1];
}

// The entries of all partitions, cut into ranges for tasks.
class EntryRanges {
 public:
  EntryRanges(std::span<const Partition> partitions, const Executor& executor)
      : partitions_(partitions),
        num_entries_(CountEntries(partitions)),
        size_(NumChunks(num_entries_, executor)) {}

  int64_t num_entries() const { return num_entries_; }
  int64_t size() const { return size_; }
  // The entries of all ranges before one.
  int64_t begin(int64_t range) const { return num_entries_ * range / size_; }

  // Calls visit(piece) for the pieces of a range.
  template <typename Visit>
  void ForEachPiece(int64_t range, Visit visit) const {
    jte::kernels::ForEachPiece(partitions_, begin(range), begin(range + 1),
                               visit);
  }

 private:
  std::span<const Partition> partitions_;
  int64_t num_entries_;
  int64_t size_;
};

// Rows to ask each device for.
using RowCounts = std::vector<int64_t>;

RowCounts CountRows(const CooBuffers& buffers, int64_t num_devices,
                    const EntryRanges& ranges, int64_t range) {
  RowCounts counts(num_devices);
  ranges.ForEachPiece(range, [&buffers, &counts](const Piece& piece) {
    int64_t num_rows = 0;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      num_rows += IsFirstOfRow(buffers, piece, i);
    }
    counts[piece.partition.device] += num_rows;
  });
  return counts;
}

// Turns the counts of ranges into what comes before each, and returns that of
// what comes after all.
RowCounts SumCounts(std::vector<RowCounts>& counts, int64_t num_devices) {
  RowCounts sum(num_devices);
  for (RowCounts& count : counts) {
    std::swap(sum, count);
    for (int64_t k = 0; k < num_devices; ++k) sum[k] += count[k];
  }
  return sum;
}

// Writes requests and entries of a range, whose rows begin at `next`. What
// exceeds the capacity is not written.
void PackRange(const CooBuffers& buffers, const EntryRanges& ranges,
               int64_t range, RowCounts& next,
               std::span<const std::span<int32_t>> requests,
               const PackedEntries& entries) {
  const int64_t capacity = std::ssize(requests[0]);
  const int bits = RowBits(std::ssize(requests), capacity);
  int64_t entry = ranges.begin(range);
  ranges.ForEachPiece(range, [&buffers, &next, &entries, &entry, requests,
                              capacity, bits](const Piece& piece) {
    const Partition& partition = piece.partition;
    const auto first_row = static_cast<int32_t>(partition.first_row);
    const auto first_sample = static_cast<int32_t>(partition.first_sample);
    int32_t* const request = requests[partition.device].data();
    int64_t place = next[partition.device] - 1;
    const int64_t shift = entry - piece.begin;  // from cells to entries
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const bool is_first = IsFirstOfRow(buffers, piece, i);
      place += is_first;
      if (is_first && place < capacity) {
        request[place] = first_row + buffers.embedding_ids[i];
      }
      entries.places[i + shift] =
          static_cast<int32_t>((partition.device << bits) + place);
      entries.samples[i + shift] = first_sample + buffers.sample_ids[i];
      entries.gains[i + shift] = buffers.gains[i];
    }
    next[partition.device] = place + 1;
    entry = piece.end + shift;
  });
}

// Writes requests and entries of the partitions; whether all rows fit.
bool PackPartitions(const CooBuffers& buffers,
                    std::span<const Partition> partitions,
                    std::span<const std::span<int32_t>> requests,
                    const PackedEntries& entries, Executor& executor) {
  const int64_t num_devices = std::ssize(requests);
  const EntryRanges ranges(partitions, executor);
  std::vector<RowCounts> next(ranges.size());
  executor.ParallelFor(
      ranges.size(), [&buffers, &ranges, &next, num_devices](int64_t range) {
        next[range] = CountRows(buffers, num_devices, ranges, range);
      });
  const RowCounts all = SumCounts(next, num_devices);
  executor.ParallelFor(ranges.size(), [&buffers, &ranges, &next, &entries,
                                       requests](int64_t range) {
    PackRange(buffers, ranges, range, next[range], requests, entries);
  });

  bool all_fit = true;
  for (int64_t k = 0; k < num_devices; ++k) {
    const int64_t capacity = std::ssize(requests[k]);
    all_fit &= all[k] <= capacity;
    std::ranges::fill(requests[k].subspan(std::min(all[k], capacity)), kNoRow);
  }
  const int64_t size = ranges.num_entries();
  std::ranges::fill(entries.places.subspan(size), 0);
  std::ranges::fill(entries.samples.subspan(size), 0);
  std::ranges::fill(entries.gains.subspan(size), 0.0f);
  std::ranges::fill(entries.row_pointers,
                    static_cast<int32_t>(RoundUp(size, kAlignment)));
  entries.row_pointers[0] = static_cast<int32_t>(size);
  return all_fit;
}

void MarkEntries(const PackedEntries& entries) {
  entries.row_pointers[0] = std::numeric_limits<int32_t>::min();
}

// `none`: what is written where there is no row.
template <typename T>
JTE_VECTOR_CLONES void CopyRows(const T* __restrict table, int64_t num_rows,
                                int64_t dim, std::span<const int32_t> wanted,
                                T none, T* __restrict out) {
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const int64_t distance = PrefetchDistance(row_bytes);
  const int64_t last = std::ssize(wanted) - 1;
  for (int64_t i = 0; i <= last; ++i, out += dim) {
    const int32_t ahead = wanted[std::min(i + distance, last)];
    if (InRange(ahead, num_rows)) {
      PrefetchTableRow(table + ahead * dim, row_bytes);
    }
    if (InRange(wanted[i], num_rows)) {
      std::copy_n(table + wanted[i] * dim, dim, out);
    } else {
      std::fill_n(out, dim, none);
    }
  }
}

float NotANumber(float) { return std::bit_cast<float>(kQuietNaN); }
template <typename T>
T NotANumber(T) {
  return RoundToNearest<T>(std::bit_cast<float>(kQuietNaN));
}

// Calls task(block, begin, end) for ranges of all places.
template <typename Task>
void ForPlaces(int64_t num_blocks, int64_t capacity, const Task& task,
               Executor& executor) {
  const int64_t tasks_per_block = CeilDiv(capacity, kPlacesPerTask);
  executor.ParallelFor(num_blocks * tasks_per_block,
                       [&task, capacity, tasks_per_block](int64_t i) {
                         const int64_t begin =
                             i % tasks_per_block * kPlacesPerTask;
                         task(i / tasks_per_block, begin,
                              std::min(begin + kPlacesPerTask, capacity));
                       });
}

// Entries [begin, end), all those of places of one block that follow each
// other, or of the places [first_place, end_place) of it, which have none.
struct PlaceRange {
  int64_t begin;
  int64_t end;
  int64_t block;
  int64_t first_place;
  int64_t end_place;
};

// All places of all blocks, as ranges for tasks.
std::vector<PlaceRange> CutPlaces(std::span<const int32_t> places,
                                  int64_t num_blocks, int64_t capacity) {
  const int bits = RowBits(num_blocks, capacity);
  const int64_t mask = (int64_t{1} << bits) - 1;
  std::vector<PlaceRange> ranges;
  std::vector<int64_t> next(num_blocks);  // the first place that is in no range
  const auto add_empty = [&ranges, &next](int64_t block, int64_t end) {
    while (next[block] < end) {
      const int64_t first = next[block];
      next[block] = std::min(first + kPlacesPerTask, end);
      ranges.push_back({0, 0, block, first, next[block]});
    }
  };
  const int64_t num_entries = std::ssize(places);
  int64_t begin = 0;
  for (int64_t i = 1; i <= num_entries; ++i) {
    if (i < num_entries) {
      const int64_t step = int64_t{places[i]} - places[i - 1];
      const bool continues =
          step == 1 && places[i] >> bits == places[begin] >> bits;
      if (step == 0 || (continues && i - begin < kEntriesPerTask)) continue;
    }
    const int64_t block = places[begin] >> bits;
    add_empty(block, places[begin] & mask);
    const int64_t first = next[block];
    next[block] = (places[i - 1] & mask) + 1;
    ranges.push_back({begin, i, block, first, next[block]});
    begin = i;
  }
  for (int64_t block = 0; block < num_blocks; ++block) {
    add_empty(block, capacity);
  }
  return ranges;
}

}  // namespace

void PackMessages(const CooBuffers& buffers, const CooGeometry& geometry,
                  std::span<const std::span<int32_t>> requests,
                  const PackedEntries& entries, Executor& executor) {
  // The rows that corrupt buffers name are to become NaN, so they are asked
  // for.
  const BuffersOrNaN batch(buffers, geometry, executor);
  const auto partitions = ReadPartitions(batch.buffers(), batch.geometry());
  const bool all_fit =
      PackPartitions(batch.buffers(), *partitions, requests, entries, executor);
  if (batch.are_corrupt() || !all_fit) MarkEntries(entries);
}

void ReadRows(ConstTableValues table, int64_t dim,
              std::span<const std::span<const int32_t>> wanted,
              std::span<const TableValues> blocks, Executor& executor) {
  std::visit(
      [&executor, dim, wanted, blocks]<typename T>(std::span<const T> values) {
        const int64_t num_rows = dim == 0 ? 0 : std::ssize(values) / dim;
        ForPlaces(
            std::ssize(wanted), std::ssize(wanted[0]),
            [values, num_rows, dim, wanted, blocks](
                int64_t block, int64_t begin, int64_t end) {
              CopyRows(
                  values.data(), num_rows, dim,
                  wanted[block].subspan(begin, end - begin), NotANumber(T{}),
                  std::get<std::span<T>>(blocks[block]).data() + begin * dim);
            },
            executor);
      },
      table);
}

void SumGradients(const ConstPackedEntries& entries,
                  std::span<const float> activation_gradient, int64_t dim,
                  std::span<const std::span<float>> blocks,
                  Executor& executor) {
  if (dim == 0) return;
  const int64_t num_blocks = std::ssize(blocks);
  const bool are_marked = entries.are_marked();
  const float none = are_marked ? std::bit_cast<float>(kQuietNaN) : 0.0f;
  const int64_t num_entries = are_marked ? 0 : entries.row_pointers[0];
  const int64_t num_samples = std::ssize(activation_gradient) / dim;
  const std::vector<PlaceRange> ranges =
      CutPlaces(entries.places.first(num_entries), num_blocks,
                std::ssize(blocks[0]) / dim);
  const PartitionOrder order{.embedding_ids = entries.places.data(),
                             .sample_ids = entries.samples.data(),
                             .gains = entries.gains.data()};
  // Like a batch of one source: a place has the entries of one SparseCore only.
  const float* const gradients[] = {activation_gradient.data()};
  const ActivationGradient gradient =
      MakeActivationGradient(gradients, /*num_sources=*/1, num_samples, dim);
  executor.ParallelFor(std::ssize(ranges), [&ranges, &order, &gradient, blocks,
                                            dim, none](int64_t task) {
    const auto& [begin, end, block, first, last] = ranges[task];
    float* const out = blocks[block].data() + first * dim;
    if (begin == end) {
      std::fill_n(out, (last - first) * dim, none);
      return;
    }
    std::vector<int32_t> places(last - first);
    SumRows(order, begin, end, gradient, /*max_rows=*/last - first,
            places.data(), out);
  });
}

}  // namespace jte::kernels
