// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::gpu {
namespace {

JTE_DEVICE int64_t Least(int64_t x, int64_t y) { return x < y ? x : y; }

// A thread has a row pointer.
struct FindPartitions {
  static constexpr int kThreads = 256;
  CooBuffers buffers;
  CooGeometry geometry;
  Partitions partitions;
  Flaws* flaws;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t num_targets = geometry.num_targets();
    const int64_t num_blocks = geometry.num_blocks();
    const int64_t block_size = geometry.num_row_pointers / num_blocks;
    for (int64_t i = thread.number(); i < geometry.num_row_pointers;
         i += thread.num_threads()) {
      const int64_t block = i / block_size;
      const int64_t target = i % block_size;
      if (block >= num_blocks) continue;
      if (target < num_targets) {
        ReadPartition(block, target, block_size);
      } else {
        CheckNothingFollows(block, i, block_size);
      }
    }
  }

  JTE_DEVICE int64_t NumMinibatches() const {
    if (!geometry.enable_minibatching) return 1;
    const int64_t count = *buffers.num_minibatches;
    if (count >= 1 && count <= kMaxMinibatches) return count;
    flaws->partitions = 1;
    return 1;
  }

  JTE_DEVICE int64_t BlocksPerRegion() const {
    return geometry.num_sc_per_device * NumMinibatches() /
           geometry.num_regions();
  }

  JTE_DEVICE void ReadPartition(int64_t block, int64_t target,
                                int64_t block_size) const {
    const int64_t num_targets = geometry.num_targets();
    const int64_t blocks_per_region = BlocksPerRegion();
    const int64_t region = block / blocks_per_region;
    const int64_t p = block * num_targets + target;
    if (region >= geometry.num_regions()) {  // of no minibatch
      partitions.begins[p] = static_cast<int32_t>(geometry.num_cells);
      partitions.ends[p] = static_cast<int32_t>(geometry.num_cells);
      return;
    }
    const int64_t region_size = geometry.num_cells / geometry.num_regions();
    const int64_t origin = region * region_size;
    int64_t begin = 0;
    if (target > 0) {
      begin =
          RoundUpToCells(buffers.row_pointers[block * block_size + target - 1]);
    } else if (block > region * blocks_per_region) {
      begin = RoundUpToCells(
          buffers.row_pointers[(block - 1) * block_size + num_targets - 1]);
    }
    // A partition that fills the region ends it, also when the region's size is
    // not aligned.
    begin = Least(begin, region_size);
    const int64_t end = buffers.row_pointers[block * block_size + target];
    if (begin < 0 || end < begin || end > region_size) flaws->partitions = 1;
    partitions.begins[p] = static_cast<int32_t>(origin + begin);
    partitions.ends[p] = static_cast<int32_t>(origin + end);
  }

  // Row pointers behind those of a block's partitions say where these end.
  // Larger ones are those of buffers for more devices.
  JTE_DEVICE void CheckNothingFollows(int64_t block, int64_t i,
                                      int64_t block_size) const {
    const int64_t blocks_per_region = BlocksPerRegion();
    if (block / blocks_per_region >= geometry.num_regions()) return;
    const int64_t last = block * block_size + geometry.num_targets() - 1;
    if (buffers.row_pointers[i] > RoundUpToCells(buffers.row_pointers[last])) {
      flaws->partitions = 1;
    }
  }
};

}  // namespace

const char* ReadPartitions(Stream stream, const CooBuffers& buffers,
                           const CooGeometry& geometry,
                           const Partitions& partitions, Flaws* flaws) {
  if (HasOnePartition(geometry)) return nullptr;
  return Launch(stream, NumBlocks<FindPartitions>(geometry.num_row_pointers),
                FindPartitions{buffers, geometry, partitions, flaws});
}

}  // namespace jte::gpu
