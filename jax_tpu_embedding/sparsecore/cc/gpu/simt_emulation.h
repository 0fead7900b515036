// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The threads of a GPU, run one by one on a CPU; included by simt.h only.
//
// What is emulated is what goes wrong in kernels: the order of blocks and of
// threads is drawn anew for every launch, a thread that exchanges values waits
// for all of its tile, and memory is the process's own, so that a sanitizer
// sees each access. Not emulated: speed, caches, and writes that other threads
// see late.
//
// A seed chooses the order: that of SeedOrder, or JTE_SIMT_SEED in the
// environment; without it, it is 0.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_EMULATION_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_EMULATION_H_

#include <bit>
#include <cstdint>

namespace jte::gpu {

struct Stream {};

class EmulatedBlock;

// As that of CUDA in simt.h.
class Thread {
 public:
  Thread(EmulatedBlock* owner, int index, int size, int64_t block,
         int64_t num_blocks)
      : owner_(owner),
        index_(index),
        size_(size),
        block_(block),
        num_blocks_(num_blocks) {}

  int index() const { return index_; }
  int64_t block() const { return block_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t number() const { return block_ * size_ + index_; }
  int64_t num_threads() const { return num_blocks_ * size_; }

  template <typename T>
  T Shuffle(T value, int lane, int lanes) const {
    return std::bit_cast<T>(
        Exchange(std::bit_cast<uint32_t>(value), lane, lanes));
  }
  template <typename T>
  T ShuffleXor(T value, int mask, int lanes) const {
    return Shuffle(value, index_ % lanes ^ mask, lanes);
  }
  bool Any(bool value, int lanes) const;
  void SyncTile(int lanes) const { Exchange(0, 0, lanes); }

  int AtomicAdd(int* at, int value) const {
    const int before = *at;
    *at += value;
    return before;
  }

 private:
  uint32_t Exchange(uint32_t value, int lane, int lanes) const;

  EmulatedBlock* owner_;
  int index_;
  int size_;
  int64_t block_;
  int64_t num_blocks_;
};

// Chooses the order of the launches that this thread makes from now on.
void SeedOrder(unsigned seed);

// What this thread has launched so far.
struct LaunchCounts {
  int64_t kernels = 0;
  int64_t fills = 0;   // with zeros
  int64_t of_cub = 0;  // calls; on a GPU each is a kernel or several

  friend LaunchCounts operator-(const LaunchCounts& x, const LaunchCounts& y) {
    return {x.kernels - y.kernels, x.fills - y.fills, x.of_cub - y.of_cub};
  }
  friend bool operator==(const LaunchCounts&, const LaunchCounts&) = default;
};
LaunchCounts& Launches();

// Calls call(kernel, thread) for all threads of the grid. Returns null, or what
// the kernel does wrong: threads that exchange values with some that never
// come. Kernels that do not exchange values need no stacks, and are quicker.
const char* EmulateGrid(int64_t num_blocks, int threads_per_block,
                        bool exchanges,
                        void (*call)(const void* kernel, const Thread& thread),
                        const void* kernel);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SIMT_EMULATION_H_
