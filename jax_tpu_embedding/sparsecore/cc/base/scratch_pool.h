// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Memory to work in that outlives a call.
//
// Tasks of a call pass it on to each other, and calls to later calls: the
// system takes longer to provide new pages than most passes need to fill them.
// Between calls, the process keeps what the budget of its caches has room for
// (cache_budget.h).
//
//   struct Scratch {
//     ScratchArray<int32_t> numbers;
//     size_t capacity_bytes() const { return numbers.capacity_bytes(); }
//   };
//   ScratchPool<Scratch> pool;                  // of one call
//   std::unique_ptr<Scratch> scratch = pool.Take();
//   std::span<int32_t> numbers = scratch->numbers.Take(n);
//   ...
//   pool.Return(std::move(scratch));

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SCRATCH_POOL_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SCRATCH_POOL_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"

namespace jte {

// An array that grows. Unlike std::vector it does not write what it hands out.
template <typename T>
class ScratchArray {
 public:
  // n elements of unspecified values. Ends the use of the previous span.
  std::span<T> Take(size_t n) {
    if (n > capacity_) {
      // A little more, so that batches of about the same size fit.
      capacity_ = 0;
      data_.reset();
      data_ = std::make_unique_for_overwrite<T[]>(n + n / 8);
      capacity_ = n + n / 8;
    }
    return {data_.get(), n};
  }

  size_t capacity_bytes() const { return capacity_ * sizeof(T); }

 private:
  std::unique_ptr<T[]> data_;
  size_t capacity_ = 0;
};

// Appends `scratch`, or frees it if there is no memory for that: destructors
// return scratch, and must not throw. Returns whether it was appended.
template <typename Scratch>
bool Append(std::unique_ptr<Scratch> scratch,
            std::vector<std::unique_ptr<Scratch>>& list) noexcept {
  try {
    list.push_back(std::move(scratch));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// What the process keeps between calls. Thread-safe.
//
// It never waits for its mutex: a process that was forked while another thread
// held it would wait forever. Who does not get it does without the cache.
template <typename Scratch>
class ScratchCache {
 public:
  static ScratchCache& OfProcess() {
    // Never destroyed: a thread may convert while the process exits.
    static ScratchCache& cache = *new ScratchCache();
    return cache;
  }

  std::unique_ptr<Scratch> Take() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    CacheBudget::OfProcess().Return(scratch->capacity_bytes());
    return scratch;
  }

  void Return(std::unique_ptr<Scratch> scratch) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const size_t bytes = scratch->capacity_bytes();
    CacheBudget& budget = CacheBudget::OfProcess();
    if (!lock || !budget.Take(bytes)) return;
    if (!Append(std::move(scratch), free_)) budget.Return(bytes);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;  // guarded by mutex_
};

// Hands each task of a call a scratch of its own. Thread-safe.
template <typename Scratch>
class ScratchPool {
 public:
  ScratchPool() = default;
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  ~ScratchPool() {
    for (std::unique_ptr<Scratch>& scratch : free_) {
      ScratchCache<Scratch>::OfProcess().Return(std::move(scratch));
    }
  }

  std::unique_ptr<Scratch> Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return ScratchCache<Scratch>::OfProcess().Take();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }

  void Return(std::unique_ptr<Scratch> scratch) noexcept {
    const std::lock_guard lock(mutex_);
    Append(std::move(scratch), free_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;  // guarded by mutex_
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SCRATCH_POOL_H_
