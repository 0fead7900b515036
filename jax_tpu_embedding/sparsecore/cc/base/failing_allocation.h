// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// For tests: operator new that fails when it is told to. A program that
// includes this has it in place of the usual one.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FAILING_ALLOCATION_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FAILING_ALLOCATION_H_

#include <cstdint>
#include <functional>

namespace jte {

// While in scope, allocation number `n` throws std::bad_alloc: they are counted
// from 0 over all threads. One at a time.
class ScopedFailingAllocation {
 public:
  explicit ScopedFailingAllocation(int64_t n);
  ~ScopedFailingAllocation();
  ScopedFailingAllocation(const ScopedFailingAllocation&) = delete;
  ScopedFailingAllocation& operator=(const ScopedFailingAllocation&) = delete;

  // Whether there were so many.
  bool has_failed() const;
};

// Calls `call` once for each of its allocations, which fails, and expects
// std::bad_alloc, or no exception where `call` can do without the memory. Then
// expects that nothing is left of the failure: that `call`, which throws or
// expects what it computes, still can do it. Returns how often it threw.
int64_t ExpectSurvivesFailingAllocations(const std::function<void()>& call);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_FAILING_ALLOCATION_H_
