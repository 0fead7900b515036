// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sort_entries.h"

namespace jte {
namespace {

// A block of activations that stays in a first-level cache while rows are added
// to it, and the number of blocks that one pass distributes entries over.
constexpr int64_t kBlockFloats = 8192;
constexpr int64_t kMaxBlocks = 256;

// log2 of the samples per block.
int BlockShift(int64_t num_samples, int64_t dim) {
  const int64_t samples =
      std::max({CeilDiv(num_samples, kMaxBlocks),
                kBlockFloats / std::max<int64_t>(dim, 1), int64_t{1}});
  return std::bit_width(static_cast<uint64_t>(samples) - 1);
}

// Zeroes `activations`, the rows of the samples from `first_sample` on, and
// adds the entries to them.
JTE_VECTOR_CLONES
void PoolBlock(std::span<const Entry> entries, const float* table, int64_t dim,
               int64_t first_sample, std::span<float> activations) {
  std::ranges::fill(activations, 0.0f);
  const int64_t distance = PrefetchDistance(dim);
  const int64_t size = std::ssize(entries);
  for (int64_t i = 0; i < std::min(distance, size); ++i) {
    PrefetchToRead(table + entries[i].row * dim, dim);
  }
  for (int64_t i = 0; i < size; ++i) {
    if (i + distance < size) {
      PrefetchToRead(table + entries[i + distance].row * dim, dim);
    }
    const float* __restrict row = table + entries[i].row * dim;
    float* __restrict out =
        activations.data() + (entries[i].sample - first_sample) * dim;
    const float gain = entries[i].gain;
    for (int64_t d = 0; d < dim; ++d) out[d] += gain * row[d];
  }
}

}  // namespace

Result<void> Lookup(const CooBuffers& buffers, const CooGeometry& geometry,
                    std::span<const float> table, int64_t dim,
                    std::span<float> activations, Executor& executor) {
  const auto partitions = ReadPartitions(buffers, geometry);
  if (!partitions) return std::unexpected(partitions.error());
  const int64_t num_entries = CountEntries(*partitions);
  if (auto checked = CheckEntries(buffers, *partitions, geometry, executor);
      !checked) {
    return checked;
  }

  const int64_t num_samples =
      geometry.num_sc_per_device * geometry.batch_size_per_sc;
  const int shift = BlockShift(num_samples, dim);
  const int64_t block_size = int64_t{1} << shift;
  const int64_t num_blocks = CeilDiv(num_samples, block_size);
  const auto entries = std::make_unique_for_overwrite<Entry[]>(num_entries);
  const std::vector<int64_t> starts = DistributeEntries(
      BufferEntries{buffers, *partitions}, num_entries, num_blocks,
      [shift](const Entry& entry) { return entry.sample >> shift; },
      std::span(entries.get(), num_entries), executor);

  const int64_t num_tasks =
      NumChunks(num_entries, executor) == 1 ? 1 : num_blocks;
  executor.ParallelFor(
      num_tasks, [&entries, &starts, table, activations, dim, num_samples,
                  block_size, num_blocks, num_tasks](int64_t task) {
        const int64_t last = num_blocks * (task + 1) / num_tasks;
        for (int64_t b = num_blocks * task / num_tasks; b < last; ++b) {
          const int64_t first_sample = b * block_size;
          const int64_t size = std::min(block_size, num_samples - first_sample);
          PoolBlock({entries.get() + starts[b], entries.get() + starts[b + 1]},
                    table.data(), dim, first_sample,
                    activations.subspan(first_sample * dim, size * dim));
        }
      });
  return {};
}

}  // namespace jte
