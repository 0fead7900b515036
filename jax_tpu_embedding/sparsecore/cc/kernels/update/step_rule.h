// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The step of an optimizer, by its name, for the rows of a block.
//
//   const auto rule = FindRule("adagrad");
//   const StepFunction step = rule->choose_step(hyperparameters);
//   step(block, hyperparameters);

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_

#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"

namespace jte::kernels {

// Steps every row of the block once: weights and slots, in place.
using StepFunction = void (*)(const RowBlock& block,
                              const float* hyperparameters);

struct Rule {
  std::string_view name;
  int num_slots;
  bool has_row_slots;  // slots have one number per row
  // Those of lib/core/update_rules.py, then the static parameters, as numbers.
  int num_hyperparameters;
  // Some rules have a faster step for some hyperparameters.
  StepFunction (*choose_step)(const float* hyperparameters);
};

// All of them.
std::span<const Rule> Rules();

// InvalidArgument, listing the choices, if there is no such rule.
Result<Rule> FindRule(std::string_view name);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_
