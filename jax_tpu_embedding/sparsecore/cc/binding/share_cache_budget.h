// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// One limit of idle memory for all extension modules of a process.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_SHARE_CACHE_BUDGET_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_SHARE_CACHE_BUDGET_H_

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// To be called when a module is made.
inline void ShareCacheBudget() {
  CacheBudget::ShareWithProcess(
      pybind11::get_or_create_shared_data<CacheBudget>(
          "jax_tpu_embedding.cache_budget"));
}

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_SHARE_CACHE_BUDGET_H_
