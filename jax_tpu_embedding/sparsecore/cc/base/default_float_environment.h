// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Arithmetic as IEEE 754 says, whatever the thread was set to: XLA runs CPU
// programs with subnormal numbers flushed to zero.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_DEFAULT_FLOAT_ENVIRONMENT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_DEFAULT_FLOAT_ENVIRONMENT_H_

#include <cfenv>

namespace jte {

// The default environment of this thread, while in scope.
class ScopedDefaultFloatEnvironment {
 public:
  ScopedDefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~ScopedDefaultFloatEnvironment() { std::fesetenv(&saved_); }

  ScopedDefaultFloatEnvironment(const ScopedDefaultFloatEnvironment&) = delete;
  ScopedDefaultFloatEnvironment& operator=(
      const ScopedDefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_DEFAULT_FLOAT_ENVIRONMENT_H_
