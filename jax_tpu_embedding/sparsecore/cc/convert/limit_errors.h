// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The error for a batch that exceeds limits or buffers, when nothing may be
// dropped.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_

#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"

namespace jte::convert {

// Collects a line for each limit of each stack that is exceeded: the worst
// case, and with it the number that would have sufficed for this batch.
class LimitErrors {
 public:
  // `reports` has one element per local SparseCore, each with an equal region
  // of its device's buffer.
  void Add(const StackPlan& plan, std::span<const FillReport> reports);

  // The same for SparseCores that share the buffer of their device, as they do
  // with minibatching.
  void AddPacked(const StackPlan& plan, std::span<const FillReport> reports);

  // An error of all lines, if there is one.
  Result<void> Check() const;

 private:
  std::string lines_;
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_
