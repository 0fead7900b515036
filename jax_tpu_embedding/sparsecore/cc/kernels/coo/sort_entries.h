// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Stable distribution of entries into buckets, in parallel.
//
// The lookup distributes the entries by sample, so that each task owns some
// rows of the result; the update of several partitions sorts them by table row,
// one digit after the other. Both keep the order of the buffers inside a
// bucket. The result does not depend on the number of threads.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_SORT_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_SORT_ENTRIES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::kernels {

// One cell, with positions that count from the device's first row and sample.
struct Entry {
  int32_t row;
  int32_t sample;
  float gain;
};

// The entries of all partitions, in the order of the buffers. The views must
// outlive it.
struct BufferEntries {
  const CooBuffers& buffers;
  std::span<const Partition> partitions;

  // Calls visit(entry) for the entries [begin, end), counted over all
  // partitions.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const {
    ForEachPiece(partitions, begin, end, [this, &visit](const Piece& piece) {
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        visit(EntryAt(piece.partition, i));
      }
    });
  }

  // The same with visit(entry, later_sample): the sample of the entry
  // `distance` later, or of the last one of the partition.
  template <typename Visit>
  void ForEachAndLater(int64_t begin, int64_t end, int64_t distance,
                       Visit visit) const {
    ForEachPiece(
        partitions, begin, end, [this, &visit, distance](const Piece& piece) {
          const Partition& partition = piece.partition;
          const auto first = static_cast<int32_t>(partition.first_sample);
          for (int64_t i = piece.begin; i < piece.end; ++i) {
            const int64_t later = std::min(i + distance, piece.end - 1);
            visit(EntryAt(partition, i), first + buffers.sample_ids[later]);
          }
        });
  }

 private:
  Entry EntryAt(const Partition& partition, int64_t i) const {
    return {.row = static_cast<int32_t>(partition.first_row) +
                   buffers.embedding_ids[i],
            .sample = static_cast<int32_t>(partition.first_sample) +
                      buffers.sample_ids[i],
            .gain = buffers.gains[i]};
  }
};

// The same of entries in memory.
struct SpanEntries {
  std::span<const Entry> entries;

  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const {
    for (int64_t i = begin; i < end; ++i) visit(entries[i]);
  }

  template <typename Visit>
  void ForEachAndLater(int64_t begin, int64_t end, int64_t distance,
                       Visit visit) const {
    for (int64_t i = begin; i < end; ++i) {
      visit(entries[i], entries[std::min(i + distance, end - 1)].sample);
    }
  }
};

// A stable counting sort of the entries of `source` (with ForEach as above), in
// `num_chunks` parallel ranges, on which the result does not depend: the ranges
// are counted, and then written.
//
// positions[chunk][bucket]: memory for num_chunks * num_buckets numbers. Those
// of the last chunk are the ends of the buckets in the end.
// bucket_of(entry): below num_buckets.
// write(begin, end, next): calls ForEach or ForEachAndLater for [begin, end),
// and puts each entry to next[bucket], which it increments.
template <typename Source, typename Position, typename BucketOf, typename Write>
void SortByCounting(const Source& source, int64_t num_entries,
                    int64_t num_chunks, std::span<Position> positions,
                    const BucketOf& bucket_of, const Write& write,
                    Executor& executor) {
  const int64_t num_buckets = std::ssize(positions) / num_chunks;
  const auto chunk_begin = [num_entries, num_chunks](int64_t chunk) {
    return num_entries * chunk / num_chunks;
  };
  executor.ParallelFor(num_chunks, [&source, &chunk_begin, &bucket_of,
                                    positions, num_buckets](int64_t chunk) {
    Position* counts = positions.data() + chunk * num_buckets;
    std::fill_n(counts, num_buckets, 0);
    source.ForEach(chunk_begin(chunk), chunk_begin(chunk + 1),
                   [counts, &bucket_of](const Entry& entry) {
                     ++counts[bucket_of(entry)];
                   });
  });

  Position position = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      Position& next = positions[chunk * num_buckets + bucket];
      position += std::exchange(next, position);
    }
  }

  executor.ParallelFor(num_chunks, [&chunk_begin, &write, positions,
                                    num_buckets](int64_t chunk) {
    write(chunk_begin(chunk), chunk_begin(chunk + 1),
          positions.data() + chunk * num_buckets);
  });
}

// Writes the entries of `source` to `out`, ordered by bucket_of(entry), which
// is below `num_buckets`, and then by ordinal. Returns where each bucket
// starts: num_buckets + 1 positions. `out` has `num_entries` elements.
template <typename Source, typename BucketOf>
std::vector<int64_t> DistributeEntries(const Source& source,
                                       int64_t num_entries, int64_t num_buckets,
                                       BucketOf bucket_of, std::span<Entry> out,
                                       Executor& executor) {
  const int64_t num_chunks = NumChunks(num_entries, executor);
  std::vector<int64_t> positions(num_chunks * num_buckets);
  SortByCounting(
      source, num_entries, num_chunks, std::span(positions), bucket_of,
      [&source, &bucket_of, out](int64_t begin, int64_t end, int64_t* next) {
        source.ForEach(begin, end, [next, &bucket_of, out](const Entry& entry) {
          out[next[bucket_of(entry)]++] = entry;
        });
      },
      executor);
  std::vector<int64_t> starts(num_buckets + 1);
  std::ranges::copy(std::span(positions).last(num_buckets), starts.begin() + 1);
  return starts;
}

// The entries ordered by row and then by their order in the buffers; rows are
// in [0, num_rows). Time and memory: O(entries), whatever num_rows is.
std::unique_ptr<Entry[]> SortByRow(const BufferEntries& source,
                                   int64_t num_entries, int64_t num_rows,
                                   Executor& executor);
std::unique_ptr<Entry[]> SortByRow(std::span<const Entry> source,
                                   int64_t num_rows, Executor& executor);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_COO_SORT_ENTRIES_H_
