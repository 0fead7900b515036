// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The one limit of all memory that the library keeps between calls: scratch
// space (scratch_pool.h) and outputs of preprocessing (binding/output_pool.h).
//
//   if (budget.Take(bytes)) idle.push_back(...);  // else free it
//   ...
//   budget.Return(bytes);                         // no longer idle
//
// Threading: all functions may be called at once, and none waits.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CACHE_BUDGET_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CACHE_BUDGET_H_

#include <atomic>
#include <cstddef>

namespace jte {

class CacheBudget {
 public:
  // Five results of the largest batches that are measured
  // (benchmarks/preprocessing: 3.5 M ids, 50 MB).
  static constexpr size_t kDefaultLimitBytes = size_t{256} << 20;

  // With the limit that the environment has, SPARSECORE_CACHE_LIMIT_MIB, or the
  // default.
  CacheBudget();
  explicit CacheBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // That of all caches of the process.
  static CacheBudget& OfProcess() { return *of_process_; }

  // Makes `budget`, which is never destroyed, that of the process. Extension
  // modules, each of which has this code, have one in common that way; each
  // calls it before anything is cached.
  static void ShareWithProcess(CacheBudget& budget) { of_process_ = &budget; }

  // Whether `bytes` may be kept.
  bool Take(size_t bytes);
  void Return(size_t bytes) { used_bytes_ -= bytes; }

  size_t used_bytes() const { return used_bytes_; }
  size_t limit_bytes() const { return limit_bytes_; }
  // What is idle beyond the limit is freed when it has been used once more.
  void SetLimitBytes(size_t limit_bytes) { limit_bytes_ = limit_bytes; }

 private:
  static CacheBudget* of_process_;

  std::atomic<size_t> limit_bytes_;
  std::atomic<size_t> used_bytes_ = 0;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CACHE_BUDGET_H_
