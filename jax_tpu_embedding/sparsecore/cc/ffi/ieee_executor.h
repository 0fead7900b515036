// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// An Executor whose tasks compute as IEEE 754 says.
//
// XLA runs CPU programs with subnormal numbers flushed to zero. A result that
// is promised bit by bit must not depend on where it is computed, so each task
// gets the default floating point environment, and gives XLA's back.
//
//   ThreadPoolExecutor pool_executor(pool);
//   IeeeExecutor executor(pool_executor);

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_IEEE_EXECUTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_IEEE_EXECUTOR_H_

#include <cstdint>
#include <functional>

#include "jax_tpu_embedding/sparsecore/cc/base/default_float_environment.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::ffi {

class IeeeExecutor final : public Executor {
 public:
  // `executor` must outlive this.
  explicit IeeeExecutor(Executor& executor) : executor_(executor) {}

  int num_threads() const override { return executor_.num_threads(); }

  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    executor_.ParallelFor(n, [&task](int64_t i) {
      const ScopedDefaultFloatEnvironment environment;
      task(i);
    });
  }

 private:
  Executor& executor_;
};

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_IEEE_EXECUTOR_H_
