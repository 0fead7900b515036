// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where parallel work runs.
//
// Library code takes an Executor& and never makes threads of its own; the
// binding passes threads of the process, an XLA handler passes XLA's pool.
//
// Guarantees of every Executor:
//  - ParallelFor runs task(i) exactly once for each i in [0, n) and returns
//    when all are done, so tasks may refer to the caller's locals.
//  - Tasks may throw, std::bad_alloc for one. Then no further task begins, and
//    ParallelFor throws the first exception once those that run are done.
//  - The calling thread takes part: a pool without a free thread only makes the
//    call slower, it never blocks it.
//  - Which thread runs which task is unspecified, so results must not depend on
//    it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_H_

#include <cstdint>
#include <functional>

namespace jte {

class Executor {
 public:
  virtual ~Executor() = default;

  // How many tasks can run at once, the calling thread's included; >= 1.
  virtual int num_threads() const = 0;

  virtual void ParallelFor(int64_t n,
                           const std::function<void(int64_t)>& task) = 0;
};

// Runs everything on the calling thread.
class InlineExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }

  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < n; ++i) task(i);
  }
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_EXECUTOR_H_
