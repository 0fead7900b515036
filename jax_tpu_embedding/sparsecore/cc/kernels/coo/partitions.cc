// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::kernels {

namespace {

// Below this another chunk costs more than it saves: some 10 us to wake a
// thread, against 1 to 3 ns per entry.
constexpr int64_t kMinEntriesPerChunk = 4096;

// One comparison for both ends of the range: a negative number becomes a large
// unsigned one.
bool OutOfRange(int32_t value, int64_t limit) {
  return static_cast<uint32_t>(value) >= static_cast<uint64_t>(limit);
}

Result<void> CheckGeometry(const CooBuffers& buffers,
                           const CooGeometry& geometry) {
  const Topology topology{.global_device_count = geometry.num_devices,
                          .num_sc_per_device = geometry.num_sc_per_device};
  const int64_t expected =
      RowPointersPerDevice(topology, geometry.enable_minibatching);
  const int64_t size = std::ssize(buffers.row_pointers);
  if (size != expected) {
    return InvalidArgument("row_pointers has ", size, " entries, expected ",
                           expected, " for ", geometry.num_sc_per_device,
                           " SparseCores on each of ", geometry.num_devices,
                           " devices.");
  }
  const int64_t max = geometry.enable_minibatching ? kMaxMinibatches : 1;
  if (geometry.num_minibatches < 1 || geometry.num_minibatches > max) {
    return InvalidArgument("num_minibatches is ", geometry.num_minibatches,
                           ", expected 1 to ", max, ".");
  }
  return {};
}

// InvalidArgument if there are entries behind the last partition of a block of
// row pointers, which ends at `end`, rounded up: they would be lost.
//
// A block has kMinRowPointersPerBlock pointers at least. To those that belong
// to no partition the converter writes `end`. In buffers for more devices they
// are the ends of other partitions. Nothing else is asked of them.
Result<void> CheckNothingFollows(const CooBuffers& buffers,
                                 const CooGeometry& geometry, int64_t block,
                                 int64_t end) {
  const int64_t num_targets = geometry.num_devices * geometry.num_sc_per_device;
  const int64_t size = RowPointersPerBlock(num_targets);
  for (int64_t index = block * size + num_targets; index < (block + 1) * size;
       ++index) {
    if (buffers.row_pointers[index] <= end) continue;
    return InvalidArgument(
        "row_pointers[", index, "] is ", buffers.row_pointers[index],
        ", expected at most ", end, ": the end of the program's ", num_targets,
        " partitions, rounded up. The buffers look made for more devices: "
        "preprocess with global_device_count=",
        geometry.num_devices,
        " and num_sc_per_device=", geometry.num_sc_per_device, ".");
  }
  return {};
}

// Whether no value is out of range.
//
// A maximum, in which a negative number is a large one: GCC 12 vectorizes that,
// but not comparisons, which take ten times as long. x86-64 alone has no such
// instruction, and takes twice as long.
JTE_VECTOR_CLONES
bool AllInRange(std::span<const int32_t> values, int64_t limit) {
  uint32_t max = 0;
  for (const int32_t value : values) {
    max = std::max(max, static_cast<uint32_t>(value));
  }
  return max < static_cast<uint64_t>(limit);
}

// InvalidArgument for the first cell of `piece` that is out of range.
Result<void> CheckPiece(const CooBuffers& buffers, const Piece& piece,
                        const CooGeometry& geometry) {
  const int64_t size = piece.end - piece.begin;
  if (AllInRange(buffers.embedding_ids.subspan(piece.begin, size),
                 geometry.rows_per_shard) &&
      AllInRange(buffers.sample_ids.subspan(piece.begin, size),
                 geometry.batch_size_per_sc)) {
    return {};
  }
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    if (OutOfRange(buffers.embedding_ids[i], geometry.rows_per_shard)) {
      return InvalidArgument("embedding_ids[", i, "] is ",
                             buffers.embedding_ids[i], ", expected 0 to ",
                             geometry.rows_per_shard - 1,
                             ": a row of the table's shard.");
    }
    if (OutOfRange(buffers.sample_ids[i], geometry.batch_size_per_sc)) {
      return InvalidArgument("sample_ids[", i, "] is ", buffers.sample_ids[i],
                             ", expected 0 to ", geometry.batch_size_per_sc - 1,
                             ": a sample of the SparseCore's batch.");
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Partition>> ReadPartitions(const CooBuffers& buffers,
                                              const CooGeometry& geometry) {
  JTE_RETURN_IF_ERROR(CheckGeometry(buffers, geometry));
  const int64_t num_scs = geometry.num_sc_per_device;
  const int64_t num_targets = geometry.num_devices * num_scs;
  const int64_t entries_per_block = RowPointersPerBlock(num_targets);
  const int64_t num_cells = std::ssize(buffers.embedding_ids);
  const int64_t num_regions = geometry.enable_minibatching ? 1 : num_scs;
  const int64_t blocks_per_region =
      num_scs * geometry.num_minibatches / num_regions;

  std::vector<Partition> partitions;
  for (int64_t region = 0; region < num_regions; ++region) {
    const int64_t origin = region * (num_cells / num_regions);
    const int64_t limit = origin + num_cells / num_regions;
    int64_t begin = origin;
    for (int64_t b = 0; b < blocks_per_region; ++b) {
      const int64_t block = region * blocks_per_region + b;
      const int64_t source = block / geometry.num_minibatches;
      for (int64_t target = 0; target < num_targets; ++target) {
        const int64_t index = block * entries_per_block + target;
        const int64_t end = origin + buffers.row_pointers[index];
        // A partition that fills the region ends it, also when the region's
        // size is not aligned.
        begin = std::min(begin, limit);
        if (end < begin || end > limit) {
          return InvalidArgument(
              "row_pointers[", index, "] is ", end - origin, ", expected ",
              begin - origin, " to ", limit - origin,
              ": the end of the partition of source SparseCore ", source,
              " and target SparseCore ", target, ".");
        }
        if (begin < end) {
          partitions.push_back({
              .begin = begin,
              .end = end,
              .first_row = target % num_scs * geometry.rows_per_shard,
              .first_sample = source * geometry.batch_size_per_sc,
              .device = target / num_scs,
          });
        }
        begin = origin + RoundUp(end - origin, kAlignment);
      }
      JTE_RETURN_IF_ERROR(
          CheckNothingFollows(buffers, geometry, block, begin - origin));
    }
  }
  return partitions;
}

int64_t CountEntries(std::span<const Partition> partitions) {
  int64_t count = 0;
  for (const Partition& partition : partitions) {
    count += partition.end - partition.begin;
  }
  return count;
}

int64_t NumChunks(int64_t num_entries, const Executor& executor) {
  return std::clamp<int64_t>(num_entries / kMinEntriesPerChunk, 1,
                             executor.num_threads());
}

Result<void> CheckEntries(const CooBuffers& buffers,
                          std::span<const Partition> partitions,
                          const CooGeometry& geometry, Executor& executor) {
  const int64_t num_entries = CountEntries(partitions);
  const int64_t num_chunks = NumChunks(num_entries, executor);
  std::vector<Result<void>> checked(num_chunks);
  executor.ParallelFor(num_chunks, [&buffers, &geometry, &checked, partitions,
                                    num_entries, num_chunks](int64_t chunk) {
    ForEachPiece(
        partitions, num_entries * chunk / num_chunks,
        num_entries * (chunk + 1) / num_chunks,
        [&buffers, &geometry, &result = checked[chunk]](const Piece& piece) {
          if (result) result = CheckPiece(buffers, piece, geometry);
        });
  });
  const auto bad = std::ranges::find_if(
      checked, [](const Result<void>& result) { return !result; });
  return bad == checked.end() ? Result<void>() : *bad;
}

}  // namespace jte::kernels
