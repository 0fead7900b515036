// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

namespace {

// Entries and samples of a task: small enough to share out skewed batches,
// large enough that taking a task and its first, unhidden memory accesses do
// not count.
constexpr int64_t kWorkPerTask = 4096;
// Blocks of samples that one pass distributes entries over.
constexpr int64_t kMaxBlocks = 256;
// Entries of each parallel range of the sort: a range has counters for all
// samples, at most half as many as entries.
constexpr int64_t kMinSortedPerChunk = 2 * kMaxSortedSamples;

// Reads entries into the caches. Those that are waited for between rows hold up
// the prefetches of rows behind them. With all of a task's read before, on an
// EPYC: 4096 x 100 ids 0.70 to 0.78 of the time in six pairs of runs; Zipf ids
// 0.62 to 0.86 in four, and 1.2 in one; 16384 x 20 ids 0.79 to 1.10 in 21
// pairs, and 1.2 to 1.4 in three.
void ReadEntries(std::span<const WeightedRow> entries) {
  constexpr size_t kPerCacheLine = kCacheLineBytes / sizeof(WeightedRow);
  int32_t rows = 0;
  for (size_t i = 0; i < entries.size(); i += kPerCacheLine) {
    rows ^= entries[i].row;
  }
  // Without a use, nothing would be read.
  asm volatile("" : : "r"(rows));
}

// Calls pool(samples, first, last, activations) for ranges of all samples.
void PoolSorted(const SortedSamples& samples, const SamplePooler& pool,
                std::span<float> activations, Executor& executor) {
  // Samples without entries are written as well.
  const auto numbers = std::views::iota(int64_t{0}, samples.num_samples());
  const auto first_from = [&samples, numbers](int64_t work) -> int64_t {
    return std::ranges::partition_point(numbers,
                                        [&samples, work](int64_t s) {
                                          return samples.begin(s) + s < work;
                                        }) -
           numbers.begin();
  };
  const int64_t num_tasks = CeilDiv(
      std::ssize(samples.entries) + samples.num_samples(), kWorkPerTask);
  executor.ParallelFor(num_tasks, [&samples, &pool, &first_from,
                                   activations](int64_t task) {
    const int64_t first = first_from(task * kWorkPerTask);
    const int64_t last = first_from((task + 1) * kWorkPerTask);
    const int64_t begin = samples.begin(first);
    ReadEntries(samples.entries.subspan(begin, samples.begin(last) - begin));
    pool(samples, first, last, activations.data());
  });
}

// The same by blocks of samples: entries are distributed over them, and each
// task sorts those of a block.
void PoolBlocks(const BufferEntries& source, int64_t num_entries,
                int64_t num_samples, int64_t dim, const SamplePooler& pool,
                std::span<float> activations, Executor& executor) {
  const int64_t max_blocks = std::clamp<int64_t>(
      (num_entries + num_samples) / kWorkPerTask, 1, kMaxBlocks);
  const int shift = std::bit_width(
      static_cast<uint64_t>(CeilDiv(num_samples, max_blocks)) - 1);
  const int64_t block_size = int64_t{1} << shift;
  const int64_t num_blocks = CeilDiv(num_samples, block_size);

  ScratchPool<ScratchArray<Entry>> entries_pool;
  auto entries_scratch = entries_pool.Take();
  const std::span<Entry> entries = entries_scratch->Take(num_entries);
  const std::vector<int64_t> starts = DistributeEntries(
      source, num_entries, num_blocks,
      [shift](const Entry& entry) { return entry.sample >> shift; }, entries,
      executor);

  ScratchPool<SortScratch> scratch_pool;
  executor.ParallelFor(num_blocks, [&starts, &pool, &scratch_pool, activations,
                                    entries, dim, block_size,
                                    num_samples](int64_t block) {
    const int64_t first_sample = block * block_size;
    const int64_t size = std::min(block_size, num_samples - first_sample);
    const int64_t num_entries = starts[block + 1] - starts[block];
    InlineExecutor inline_executor;
    auto scratch = scratch_pool.Take();
    const SortedSamples samples = SortBySample(
        SpanEntries{entries.subspan(starts[block], num_entries)}, num_entries,
        first_sample, size, /*num_chunks=*/1, *scratch, inline_executor);
    pool(samples, 0, size, activations.data() + first_sample * dim);
    scratch_pool.Return(std::move(scratch));
  });
  entries_pool.Return(std::move(entries_scratch));
}

void PoolAll(const BufferEntries& source, int64_t num_samples, int64_t dim,
             const SamplePooler& pool, std::span<float> activations,
             Executor& executor) {
  const int64_t num_entries = CountEntries(source.partitions);
  if (num_samples > kMaxSortedSamples) {
    return PoolBlocks(source, num_entries, num_samples, dim, pool, activations,
                      executor);
  }
  ScratchPool<SortScratch> scratch_pool;
  auto scratch = scratch_pool.Take();
  const int64_t num_chunks = std::clamp<int64_t>(
      num_entries / kMinSortedPerChunk, 1, executor.num_threads());
  PoolSorted(SortBySample(source, num_entries, /*first_sample=*/0, num_samples,
                          num_chunks, *scratch, executor),
             pool, activations, executor);
  scratch_pool.Return(std::move(scratch));
}

// The lookup, once the partitions are read and the entries checked.
Result<void> Pool(const CooBuffers& buffers,
                  std::span<const Partition> partitions,
                  const CooGeometry& geometry, int64_t dim,
                  const SamplePooler& pool, std::span<float> activations,
                  Executor& executor) {
  if (const int64_t num_entries = CountEntries(partitions);
      num_entries > kMaxSortedEntries) {
    return InvalidArgument("The buffers of a device have ", num_entries,
                           " entries, expected at most ", kMaxSortedEntries,
                           ". Split the batch over more devices.");
  }
  PoolAll(BufferEntries{buffers, partitions}, geometry.batch_size(), dim, pool,
          activations, executor);
  return {};
}

}  // namespace

Result<void> Lookup(const CooBuffers& buffers, const CooGeometry& geometry,
                    LookupTable table, int64_t dim,
                    const std::optional<Quantization>& quantization,
                    std::span<float> activations, Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto partitions,
                       ReadPartitions(buffers, geometry));
  JTE_RETURN_IF_ERROR(CheckEntries(buffers, partitions, geometry, executor));
  return Pool(buffers, partitions, geometry, dim,
              MakePooler(std::span(&table, 1), geometry.rows_per_device(), dim,
                         quantization),
              activations, executor);
}

Result<void> LookupInTables(const CooBuffers& buffers,
                            const CooGeometry& geometry,
                            std::span<const LookupTable> tables, int64_t dim,
                            const std::optional<Quantization>& quantization,
                            std::span<float> activations, Executor& executor) {
  if (!NumbersFit(geometry.num_devices, geometry.rows_per_device(), 32)) {
    return InvalidArgument("The tables of ", geometry.num_devices,
                           " devices have ", geometry.rows_per_device(),
                           " rows each, expected numbers of 32 bits.");
  }
  JTE_ASSIGN_OR_RETURN(auto partitions, ReadPartitions(buffers, geometry));
  const int bits = RowBits(geometry.num_devices, geometry.rows_per_device());
  for (Partition& partition : partitions) {
    partition.first_row += partition.device << bits;
  }
  return Pool(buffers, partitions, geometry, dim,
              MakePooler(tables, geometry.rows_per_device(), dim, quantization),
              activations, executor);
}

Result<void> AddRowsOf(int64_t device, const CooBuffers& buffers,
                       const CooGeometry& geometry, LookupTable table,
                       int64_t dim,
                       const std::optional<Quantization>& quantization,
                       std::span<float> activations, Executor& executor) {
  JTE_ASSIGN_OR_RETURN(auto partitions, ReadPartitions(buffers, geometry));
  std::erase_if(partitions, [device](const Partition& partition) {
    return partition.device != device;
  });
  return Pool(buffers, partitions, geometry, dim,
              MakeAdder(table, dim, quantization), activations, executor);
}

}  // namespace jte::kernels
