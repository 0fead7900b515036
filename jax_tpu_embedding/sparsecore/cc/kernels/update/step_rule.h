// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The step of an optimizer, by its name, for the rows of a block.
//
//   const auto rule = FindRule("adagrad");
//   const Steps steps = rule->choose_steps(hyperparameters);
//   steps.block(block, hyperparameters);

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

// Steps every row of the block once: weights and slots, in place.
using StepFunction = void (*)(const RowBlock& block,
                              const float* hyperparameters);

// What is stepped, and by the gradient of which activations.
struct EntriesUpdate {
  ArrayRows<float> gradient;  // by sample, of one source
  float* table;
  std::array<float*, kMaxSlots> slots;
  const float* hyperparameters;
};

// Whether rows of so many columns are stepped in one pass: whole vectors, in few
// registers. Loops that would serve any number need more
// registers than there are, and are slower than two passes.
//
// has_row_slots: of the rule. What is computed of a whole row has to wait for
// all of its sums, which must be in registers.
constexpr bool OnePassServes(int64_t dim, bool has_row_slots) {
  if (dim == 8 || dim == 16 || dim == 32 || dim == 64) return true;
  return !has_row_slots && dim > 0 && dim % 64 == 0;
}

// Sums and steps the rows of entries in one pass: step_entries.h. Steps every
// row that has an entry in [begin, end), which has all its entries.
// Requires: OnePassServes(update.gradient.dim, ...) for the rule; no row has
// more than kTermsPerBlock entries.
using StepEntriesFunction = void (*)(const PartitionOrder& entries,
                                     int64_t begin, int64_t end,
                                     const EntriesUpdate& update);

struct Steps {
  StepFunction block;
  StepEntriesFunction entries;  // null if the rule has none
};

struct Rule {
  std::string_view name;
  int num_slots;
  bool has_row_slots;  // slots have one number per row
  // Those of lib/core/update_rules.py, then the static parameters, as numbers.
  int num_hyperparameters;
  // Some rules have faster steps for some hyperparameters.
  Steps (*choose_steps)(const float* hyperparameters);
};

// All of them.
std::span<const Rule> Rules();

// InvalidArgument, listing the choices, if there is no such rule.
Result<Rule> FindRule(std::string_view name);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_
