// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/failing_allocation.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>

#include "gtest/gtest.h"

namespace {

// How many allocations succeed before the one that fails; negative: all do.
std::atomic<int64_t> num_left = -1;
std::atomic<bool> has_failed = false;

}  // namespace

void* operator new(size_t size) {
  if (num_left >= 0 && num_left-- == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace jte {

ScopedFailingAllocation::ScopedFailingAllocation(int64_t n) {
  ::has_failed = false;
  num_left = n;
}

ScopedFailingAllocation::~ScopedFailingAllocation() { num_left = -1; }

bool ScopedFailingAllocation::has_failed() const { return ::has_failed; }

int64_t ExpectSurvivesFailingAllocations(const std::function<void()>& call) {
  int64_t num_thrown = 0;
  for (int64_t n = 0;; ++n) {
    bool has_failed;
    {
      const ScopedFailingAllocation allocation(n);
      try {
        call();
      } catch (const std::bad_alloc&) {
        ++num_thrown;
      }
      has_failed = allocation.has_failed();
    }
    if (!has_failed) return num_thrown;
    EXPECT_NO_THROW(call()) << "after allocation " << n << " failed";
  }
}

}  // namespace jte
