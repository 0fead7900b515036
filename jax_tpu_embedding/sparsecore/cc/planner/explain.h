// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Why stacks are apart, for a person who wonders.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_EXPLAIN_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_EXPLAIN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

// A stack whose tables say that they are in it.
struct StackQuestion {
  std::string stack_name;
  int64_t activation_mem_bytes_limit = 0;  // that it was planned with
};

struct StackReport {
  std::string stack_name;
  // Activations of all its features on one SparseCore, in float32.
  int64_t activation_bytes_per_sc = 0;
  // A sentence: what keeps the stack from being part of another one.
  std::string why_apart;
};

// One report per question, in this order. Compares stacks as they are now, by
// the rules of PlanAutoStack; who made them, and with which calls, is not
// known.
//
// Every table of the model must be in one of the stacks, of which there are at
// most 20,000.
Result<std::vector<StackReport>> ExplainStacks(
    const Model& model, std::span<const StackQuestion> stacks);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_EXPLAIN_H_
