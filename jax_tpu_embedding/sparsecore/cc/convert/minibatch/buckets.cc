// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_table.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/entries.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

constexpr size_t kBlock = 8;

// Returns the number of rows.
JTE_VECTOR_CLONES
size_t WriteRows(std::span<const uint64_t> elements, const SortKey& sort_key,
                 uint32_t num_scs, uint32_t* stack_rows, uint32_t* ends) {
  if (elements.empty()) return 0;
  const SortKey key_parts = sort_key;  // not loaded again in each turn
  const auto stack_row = [&key_parts, num_scs](uint64_t element) {
    const uint32_t key = SortKey::KeyOf(element);
    return key_parts.RowOf(key) * num_scs + key_parts.PartitionOfKey(key);
  };
  stack_rows[0] = stack_row(elements[0]);
  ends[0] = 1;
  size_t row = 0;  // of the last element
  size_t done = 1;
  while (done < elements.size()) {
    const uint64_t* const block = elements.data() + done;
    const uint64_t* const before = block - 1;
    const size_t size = std::min(elements.size() - done, kBlock);
    uint32_t repeats = size < kBlock;
    if (size == kBlock) {
      // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
      for (size_t i = 0; i < kBlock; ++i) {
        repeats |= SortKey::KeyOf(block[i]) == SortKey::KeyOf(before[i]);
      }
    }
    if (repeats == 0) {
#pragma GCC unroll 1
      for (size_t i = 0; i < kBlock; ++i) {
        stack_rows[row + 1 + i] = stack_row(block[i]);
        ends[row + 1 + i] = static_cast<uint32_t>(done + i + 1);
      }
      row += kBlock;
    } else {
      // An element begins a row, or overwrites what the one before it wrote: no
      // branch on the data.
      for (size_t i = 0; i < size; ++i) {
        row += SortKey::KeyOf(block[i]) != SortKey::KeyOf(before[i]);
        stack_rows[row] = stack_row(block[i]);
        ends[row] = static_cast<uint32_t>(done + i + 1);
      }
    }
    done += size;
  }
  return row + 1;
}

}  // namespace

RowList ListRows(std::span<const uint64_t> elements, const SortKey& sort_key,
                 uint32_t num_scs, const RowList& memory) {
  const size_t num_rows =
      WriteRows(elements, sort_key, num_scs, memory.stack_rows.data(),
                memory.ends.data());
  return {.stack_rows = memory.stack_rows.first(num_rows),
          .ends = memory.ends.first(num_rows)};
}

namespace {

// How many of the first elements belong to partitions up to `partition`: one by
// one, then in doubling steps, so that short and long partitions cost little.
int64_t PartitionSize(std::span<const uint64_t> elements,
                      const SortKey& sort_key, uint32_t partition) {
  const auto belongs = [&sort_key, partition](uint64_t element) {
    return sort_key.PartitionOf(element) <= partition;
  };
  constexpr int64_t kShort = 8;
  const int64_t size = std::ssize(elements);
  int64_t known = 0;  // elements that belong
  while (known < std::min(size, kShort)) {
    if (!belongs(elements[known])) return known;
    ++known;
  }
  int64_t step = kShort;
  while (known + step <= size && belongs(elements[known + step - 1])) {
    known += step;
    step *= 2;
  }
  const auto rest = elements.subspan(known, std::min(step, size - known));
  return known + (std::ranges::partition_point(rest, belongs) - rest.begin());
}

// The entries that the limits of a bucket allow.
template <typename Gains>
uint32_t CountKept(std::span<const uint64_t> elements, const Gains& gains,
                   const PartitionLimits& limits) {
  EntryScan scan;
  uint32_t num_kept_ids = 0;
  for (const uint64_t element : elements) {
    const bool new_entry =
        scan.Next(element, gains[SortKey::PayloadOf(element)].sample);
    if (!scan.counts().Within(limits)) break;
    num_kept_ids += new_entry;
  }
  return num_kept_ids;
}

// The rows of one partition, and where its elements begin.
struct PartitionRows {
  std::span<const uint32_t> ends;
  std::span<const uint8_t> buckets;
  uint32_t begin;
};

// How many of the elements are the same entry as the one before.
template <typename Gains>
uint32_t CountMerges(std::span<const uint64_t> elements_of_row,
                     const Gains& gains) {
  uint32_t num_merges = 0;
  int32_t last = gains[SortKey::PayloadOf(elements_of_row.front())].sample;
  for (const uint64_t element : elements_of_row.subspan(1)) {
    const int32_t sample = gains[SortKey::PayloadOf(element)].sample;
    num_merges += sample == last;
    last = sample;
  }
  return num_merges;
}

// Sorts a partition by bucket, from `elements` to `sorted`, and counts. Rows
// have one element mostly, so there are only branches for further ones.
template <typename Gains>
void SortPartition(std::span<const uint64_t> elements, const Gains& gains,
                   const PartitionRows& rows, std::span<uint64_t> sorted,
                   std::span<BucketCounts> counts) {
  // Each bucket has its rows in the high half, its elements in the low one.
  std::array<uint64_t, kMaxMinibatches> sizes = {};
  constexpr uint64_t kOneRow = uint64_t{1} << 32;
  uint32_t begin = rows.begin;
  for (size_t row = 0; row < rows.ends.size(); ++row) {
    sizes[rows.buckets[row]] += kOneRow + (rows.ends[row] - begin);
    begin = rows.ends[row];
  }
  std::array<uint32_t, kMaxMinibatches> positions;
  uint32_t position = rows.begin;
  for (int64_t b = 0; b < kMaxMinibatches; ++b) {
    const auto num_elements = static_cast<uint32_t>(sizes[b]);
    positions[b] = position;
    position += num_elements;
    counts[b] = {.end = position,
                 .num_ids = num_elements,
                 .num_unique_ids = static_cast<uint32_t>(sizes[b] >> 32),
                 .num_kept_ids = 0};
  }
  begin = rows.begin;
  for (size_t row = 0; row < rows.ends.size(); ++row) {
    uint32_t& to = positions[rows.buckets[row]];
    const uint32_t end = rows.ends[row];
    sorted[to++] = elements[begin];
    if (end - begin > 1) [[unlikely]] {
      const auto ids = elements.subspan(begin, end - begin);
      std::ranges::copy(ids.subspan(1), sorted.begin() + to);
      to += ids.size() - 1;
      counts[rows.buckets[row]].num_ids -= CountMerges(ids, gains);
    }
    begin = end;
  }
}

template <typename Gains>
void CountKeptIds(std::span<uint64_t> elements, const Gains& gains,
                  const PartitionLimits& limits, uint32_t begin,
                  std::span<BucketCounts> counts) {
  for (BucketCounts& bucket : counts) {
    bucket.num_kept_ids =
        bucket.Within(limits)
            ? bucket.num_ids
            : CountKept(elements.subspan(begin, bucket.end - begin), gains,
                        limits);
    begin = bucket.end;
  }
}

}  // namespace

PartitionTable CountPartitions(const SortedIds& ids, const SortKey& sort_key,
                               uint32_t num_scs) {
  PartitionTable table = {.num_buckets = 1,
                          .counts = std::vector<BucketCounts>(num_scs)};
  std::visit(
      [&ids, &sort_key, &table](const auto& gains) {
        std::span<const uint64_t> rest = ids.elements;
        for (uint32_t t = 0; t < table.counts.size(); ++t) {
          const int64_t size = PartitionSize(rest, sort_key, t);
          const DistinctCounts counts = CountDistinct(rest.first(size), gains);
          rest = rest.subspan(size);
          table.counts[t] = {
              .end = static_cast<uint32_t>(ids.elements.size() - rest.size()),
              .num_ids = counts.ids,
              .num_unique_ids = counts.unique_ids,
              .num_kept_ids = counts.ids};
        }
      },
      ids.gains);
  return table;
}

PartitionTable SortIntoBuckets(SortedIds& ids, const PartitionTable& partitions,
                               const SortKey& sort_key,
                               const PartitionLimits& limits,
                               RowScratch& scratch) {
  const size_t num_elements = ids.elements.size();
  const RowList rows =
      ListRows(ids.elements, sort_key, limits.num_scs,
               {.stack_rows = scratch.stack_rows.Take(num_elements),
                .ends = scratch.ends.Take(num_elements)});
  const std::span<uint8_t> buckets =
      scratch.buckets.Take(rows.stack_rows.size());
  BucketTable::OfProcess().Find(rows.stack_rows, buckets);
  PartitionTable table = {
      .num_buckets = kMaxMinibatches,
      .counts = std::vector<BucketCounts>(limits.num_scs * kMaxMinibatches)};
  std::visit(
      [&ids, &partitions, &limits, &rows, buckets, &table](const auto& gains) {
        size_t row = 0;
        uint32_t begin = 0;
        for (uint32_t t = 0; t < limits.num_scs; ++t) {
          const BucketCounts& partition = partitions.counts[t];
          const auto counts =
              std::span(table.counts)
                  .subspan(t * kMaxMinibatches, kMaxMinibatches);
          SortPartition(
              ids.elements, gains,
              {.ends = rows.ends.subspan(row, partition.num_unique_ids),
               .buckets = buckets.subspan(row, partition.num_unique_ids),
               .begin = begin},
              ids.spare, counts);
          CountKeptIds(ids.spare, gains, limits, begin, counts);
          row += partition.num_unique_ids;
          begin = partition.end;
        }
      },
      ids.gains);
  std::swap(ids.elements, ids.spare);
  return table;
}

}  // namespace jte::convert
