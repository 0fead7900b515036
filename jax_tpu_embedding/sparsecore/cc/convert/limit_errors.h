// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The error for a batch that exceeds limits or buffers, when nothing may be
// dropped.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_

#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/convert/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// One line for each of the stack's limits that a report exceeds: the worst
// case, and with it the number that would have sufficed for this batch. Empty
// if there is none. `reports` has one element per local SparseCore.
std::string DescribeExcess(const StackPlan& plan,
                           std::span<const FillReport> reports);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_LIMIT_ERRORS_H_
