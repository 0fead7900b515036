// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/fill_minibatches.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/csr_writer.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

// The buckets of a partition that are in a minibatch; some are beyond a limit,
// or there is no room.
template <typename Gains>
void WriteBuckets(std::span<const uint64_t> elements,
                  std::span<const BucketCounts> buckets,
                  const PartitionLimits& limits, uint32_t begin,
                  CsrWriter<Gains>& writer) {
  for (const BucketCounts& bucket : buckets) {
    writer.WriteWithinLimits(elements.subspan(begin, bucket.end - begin),
                             limits);
    begin = bucket.end;
  }
}

}  // namespace

int64_t CountCells(const PartitionTable& minibatches,
                   uint32_t BucketCounts::* count_of) {
  int64_t num_cells = 0;
  for (const BucketCounts& counts : minibatches.counts) {
    num_cells += RoundUp(int64_t{counts.*count_of}, kAlignment);
  }
  return num_cells;
}

int64_t FillMinibatches(const SortedIds& ids, const SortKey& sort_key,
                        const PartitionTable& table,
                        const PartitionTable& minibatches,
                        const MinibatchSplit& split,
                        const PartitionLimits& limits,
                        std::span<int32_t> row_pointers,
                        const CsrBuffers& cells, int64_t begin) {
  const int64_t block_size = std::ssize(row_pointers) / split.size();
  return std::visit(
      [&ids, &sort_key, &table, &minibatches, &split, &limits, row_pointers,
       &cells, begin, block_size](const auto& gains) {
        CsrWriter writer(sort_key, gains, cells, begin);
        for (int64_t m = 0; m < split.size(); ++m) {
          const auto block = row_pointers.subspan(m * block_size, block_size);
          for (int64_t t = 0; t < table.num_partitions(); ++t) {
            const BucketCounts& counts = minibatches.Buckets(t)[m];
            const uint32_t first = minibatches.Begin(t, m);
            if (counts.num_kept_ids == counts.num_ids &&
                writer.HasRoomFor(counts.num_ids)) {
              writer.Write(ids.elements.subspan(first, counts.end - first));
            } else {
              WriteBuckets(ids.elements,
                           table.Buckets(t).subspan(
                               split.begin(m), split.end(m) - split.begin(m)),
                           limits, first, writer);
            }
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

}  // namespace jte::convert
