// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/fill_minibatches.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_counts.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {
namespace {

// The buckets of a partition that are in a minibatch.
std::span<const BucketCounts> BucketsOf(const PartitionTable& table,
                                        const MinibatchSplit& split,
                                        int64_t minibatch, int64_t partition) {
  return table.Buckets(partition).subspan(
      split.begin(minibatch), split.end(minibatch) - split.begin(minibatch));
}

int64_t Sum(std::span<const BucketCounts> buckets,
            uint32_t BucketCounts::* count_of) {
  int64_t sum = 0;
  for (const BucketCounts& bucket : buckets) sum += bucket.*count_of;
  return sum;
}

// Where the elements of a partition's bucket begin.
int64_t BeginOf(const PartitionTable& table, int64_t partition,
                int64_t bucket) {
  const int64_t index = partition * table.num_buckets + bucket;
  return index == 0 ? 0 : table.counts[index - 1].end;
}

template <typename Gains>
void WriteBuckets(std::span<const uint64_t> elements,
                  std::span<const BucketCounts> buckets, int64_t begin,
                  const PartitionLimits& limits, CsrWriter<Gains>& writer) {
  const int64_t num_kept_ids = Sum(buckets, &BucketCounts::num_kept_ids);
  if (num_kept_ids == Sum(buckets, &BucketCounts::num_ids) &&
      writer.HasRoomFor(num_kept_ids)) {
    writer.Write(elements.subspan(begin, buckets.back().end - begin));
    return;
  }
  for (const BucketCounts& bucket : buckets) {
    writer.WriteWithinLimits(elements.subspan(begin, bucket.end - begin),
                             limits);
    begin = bucket.end;
  }
}

}  // namespace

int64_t CountCells(const PartitionTable& table, const MinibatchSplit& split,
                   uint32_t BucketCounts::* count_of) {
  int64_t num_cells = 0;
  for (int64_t t = 0; t < table.num_partitions(); ++t) {
    for (int64_t m = 0; m < split.size(); ++m) {
      num_cells +=
          RoundUp(Sum(BucketsOf(table, split, m, t), count_of), kAlignment);
    }
  }
  return num_cells;
}

int64_t FillMinibatches(const SortedIds& ids, const SortKey& sort_key,
                        const PartitionTable& table,
                        const MinibatchSplit& split,
                        const PartitionLimits& limits,
                        std::span<int32_t> row_pointers,
                        const CsrBuffers& cells, int64_t begin) {
  const int64_t block_size = std::ssize(row_pointers) / split.size();
  return std::visit(
      [&ids, &sort_key, &table, &split, &limits, row_pointers, &cells, begin,
       block_size](const auto& gains) {
        CsrWriter writer(sort_key, gains, cells, begin);
        for (int64_t m = 0; m < split.size(); ++m) {
          const auto block = row_pointers.subspan(m * block_size, block_size);
          for (int64_t t = 0; t < table.num_partitions(); ++t) {
            WriteBuckets(ids.elements, BucketsOf(table, split, m, t),
                         BeginOf(table, t, split.begin(m)), limits, writer);
            block[t] = static_cast<int32_t>(writer.position());
            writer.Align();
          }
          std::ranges::fill(block.subspan(table.num_partitions()),
                            static_cast<int32_t>(writer.position()));
        }
        return writer.dropped_id_count();
      },
      ids.gains);
}

}  // namespace jte
