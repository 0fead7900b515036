// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Memory that a worker uses for one SparseCore and reuses for the next.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"

namespace jte {

// An array that grows. Unlike std::vector it does not write what it hands out.
template <typename T>
class ScratchArray {
 public:
  // n elements of unspecified values. Ends the use of the previous span.
  std::span<T> Take(size_t n) {
    if (n > capacity_) {
      data_ = std::make_unique_for_overwrite<T[]>(n);
      capacity_ = n;
    }
    return {data_.get(), n};
  }

 private:
  std::unique_ptr<T[]> data_;
  size_t capacity_ = 0;
};

struct Scratch {
  ScratchArray<uint64_t> elements;
  ScratchArray<uint64_t> sorted_elements;
  ScratchArray<float> sample_gains;
  ScratchArray<WeightedId> weighted_ids;
};

// Hands each task a Scratch of its own. Thread-safe.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }

  void Return(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;  // guarded by mutex_
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_
