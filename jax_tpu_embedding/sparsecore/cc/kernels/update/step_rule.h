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
#include <optional>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

// Steps every row of the block once: weights and slots, in place.
using StepFunction = void (*)(const RowBlock& block,
                              const float* hyperparameters);

// What is stepped, and by the gradient of which activations.
struct EntriesUpdate {
  ArrayRows<float> gradient;  // by sample, of one source
  TableValues table;
  std::array<float*, kMaxSlots> slots;
  const float* hyperparameters;
  RowOptions options;
  std::optional<StochasticRounding> rounding;
};

// Sums and steps the rows of entries in one pass: step_entries.h. Steps every
// row that has an entry in [begin, end), which has all its entries.
// Requires: OnePassServes for rule, table and gradient; no row has more than
// kTermsPerBlock entries.
using StepEntriesFunction = void (*)(const PartitionOrder& entries,
                                     int64_t begin, int64_t end,
                                     const EntriesUpdate& update);

struct Steps {
  StepFunction block;
  // Null if the rule has none.
  StepEntriesFunction entries;  // without options
  StepEntriesFunction entries_with_options;
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

// Whether rows of so many columns are stepped in one pass: whole vectors, in
// few registers. Loops that would serve any number need more registers than
// there are, and are slower than two passes.
//
// What a rule computes of a whole row has to wait for all of its sums, which
// must be in registers. Rules with two slots take 0.9 to 1.13 of the time of
// two passes with 128 and 256 columns; and in tables of 16 bits, which
// has_floats excludes, 0.5 to 0.65 of it with 8 columns and 0.8 to 1.2 with
// more.
//
// So do options, but they have no registers for it: limits of norms take 0.7 to
// 1.3 of the time of two passes. Those that take a number at a time are served;
// not in tables of 16 bits: step_rule.cc takes 1.3 times as long to compile
// with options, and would take 1.8 times as long.
constexpr bool OnePassServes(const Rule& rule, const RowOptions& options,
                             bool has_floats, int64_t dim) {
  const bool does_little = !rule.has_row_slots && rule.num_slots <= 1;
  if (!has_floats && (!does_little || options != RowOptions())) return false;
  if (options.skip_non_finite_gradients || options.max_gradient_norm) {
    return false;
  }
  // They would have to begin with another sum of squares.
  if (options.l2_weight_decay && rule.has_row_slots) return false;
  if (dim == 8 || dim == 16 || dim == 32 || dim == 64) return true;
  return does_little && dim > 0 && dim % 64 == 0;
}

// All of them.
std::span<const Rule> Rules();

// InvalidArgument, listing the choices, if there is no such rule.
Result<Rule> FindRule(std::string_view name);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_RULE_H_
