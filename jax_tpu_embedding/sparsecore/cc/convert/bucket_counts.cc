// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_counts.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_hash.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/partition_size.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {
namespace {

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

// The distinct rows, in the order of their elements.
struct RowList {
  std::span<uint32_t> keys;
  std::span<uint32_t> num_ids;
  std::span<uint32_t> num_elements;
};

// The loop has no branch on the data: an element begins a row, or overwrites
// what the element before it wrote.
template <typename Gains>
RowList ListRows(std::span<const uint64_t> elements, const Gains& gains,
                 RowScratch& scratch) {
  const RowList rows = {
      .keys = scratch.keys.Take(elements.size()),
      .num_ids = scratch.num_ids.Take(elements.size()),
      .num_elements = scratch.num_elements.Take(elements.size())};
  int64_t row = -1;
  uint32_t last_key = elements.empty() ? 0 : ~SortKey::KeyOf(elements.front());
  int32_t last_sample = 0;
  uint32_t num_ids = 0;
  uint32_t num_elements = 0;
  for (const uint64_t element : elements) {
    const uint32_t key = SortKey::KeyOf(element);
    const int32_t sample = gains[SortKey::PayloadOf(element)].sample;
    const bool new_row = key != last_key;
    const bool new_entry = new_row | (sample != last_sample);
    row += new_row;
    num_ids = new_row ? 1 : num_ids + new_entry;
    num_elements = new_row ? 1 : num_elements + 1;
    rows.keys[row] = key;
    rows.num_ids[row] = num_ids;
    rows.num_elements[row] = num_elements;
    last_key = key;
    last_sample = sample;
  }
  const size_t size = row + 1;
  return {.keys = rows.keys.first(size),
          .num_ids = rows.num_ids.first(size),
          .num_elements = rows.num_elements.first(size)};
}

JTE_VECTOR_CLONES
void FindColumns(std::span<const uint32_t> keys, const SortKey& sort_key,
                 uint32_t num_scs, uint32_t* columns) {
  const SortKey key = sort_key;  // no other name for it: not reloaded
  for (size_t i = 0; i < keys.size(); ++i) {
    columns[i] = key.RowOf(keys[i]) * num_scs + key.PartitionOfKey(keys[i]);
  }
}

JTE_VECTOR_CLONES
void FindSlotsOfBuckets(std::span<const uint32_t> keys, const SortKey& sort_key,
                        std::span<const uint8_t> buckets, uint32_t* slots) {
  const SortKey key = sort_key;
  for (size_t i = 0; i < keys.size(); ++i) {
    slots[i] =
        key.PartitionOfKey(keys[i]) * static_cast<uint32_t>(kMaxMinibatches) +
        buckets[i];
  }
}

// Where in PartitionTable::counts the row of each key counts.
std::span<const uint32_t> FindSlots(std::span<const uint32_t> keys,
                                    const SortKey& sort_key, uint32_t num_scs,
                                    RowScratch& scratch) {
  const std::span<uint32_t> slots = scratch.slots.Take(keys.size());
  FindColumns(keys, sort_key, num_scs, slots.data());
  const std::span<uint8_t> buckets = scratch.buckets.Take(keys.size());
  FindBuckets(slots, buckets);
  FindSlotsOfBuckets(keys, sort_key, buckets, slots.data());
  return slots;
}

// Sets the end of each bucket.
void MoveElements(SortedIds& ids, std::span<const uint32_t> slots,
                  const RowList& rows, std::span<BucketCounts> counts) {
  uint32_t begin = 0;
  for (BucketCounts& bucket : counts) {
    begin += std::exchange(bucket.end, begin);
  }
  size_t i = 0;
  for (size_t row = 0; row < slots.size(); ++row) {
    uint32_t& end = counts[slots[row]].end;
    for (uint32_t n = rows.num_elements[row]; n > 0; --n) {
      ids.spare[end++] = ids.elements[i++];
    }
  }
  std::swap(ids.elements, ids.spare);
}

template <typename Gains>
void CountKeptIds(std::span<const uint64_t> elements, const Gains& gains,
                  const PartitionLimits& limits,
                  std::span<BucketCounts> counts) {
  uint32_t begin = 0;
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
          const EntryCounts counts = CountEntries(rest.first(size), gains);
          rest = rest.subspan(size);
          const auto num_ids = static_cast<uint32_t>(counts.ids);
          table.counts[t] = {
              .end = static_cast<uint32_t>(ids.elements.size() - rest.size()),
              .num_ids = num_ids,
              .num_unique_ids = static_cast<uint32_t>(counts.unique_ids),
              .num_kept_ids = num_ids};
        }
      },
      ids.gains);
  return table;
}

PartitionTable SortIntoBuckets(SortedIds& ids, const SortKey& sort_key,
                               const PartitionLimits& limits,
                               RowScratch& scratch) {
  PartitionTable table = {
      .num_buckets = kMaxMinibatches,
      .counts = std::vector<BucketCounts>(limits.num_scs * kMaxMinibatches)};
  std::visit(
      [&ids, &sort_key, &limits, &scratch, &table](const auto& gains) {
        const RowList rows = ListRows(ids.elements, gains, scratch);
        const std::span<const uint32_t> slots =
            FindSlots(rows.keys, sort_key, limits.num_scs, scratch);
        for (size_t row = 0; row < slots.size(); ++row) {
          BucketCounts& bucket = table.counts[slots[row]];
          bucket.end += rows.num_elements[row];
          bucket.num_ids += rows.num_ids[row];
          ++bucket.num_unique_ids;
        }
        MoveElements(ids, slots, rows, table.counts);
        CountKeptIds(ids.elements, gains, limits, table.counts);
      },
      ids.gains);
  return table;
}

}  // namespace jte
