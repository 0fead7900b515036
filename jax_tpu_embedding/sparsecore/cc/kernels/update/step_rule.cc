// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/power.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_of_squares.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"

namespace jte::kernels {

namespace {

// Steps the columns from `column` on, in pieces of `kWidth`; returns the first
// column that is left.
template <int kWidth, typename Rule>
[[gnu::always_inline]] inline int64_t StepColumns(
    const Rule& rule, int64_t column, int64_t dim,
    const float* __restrict gradient, float* __restrict weights,
    const std::array<float*, Rule::kNumSlots>& slots) {
  for (; column + kWidth <= dim; column += kWidth) {
    const float* __restrict grad = gradient + column;
    float* __restrict weight = weights + column;
    std::array<float* __restrict, Rule::kNumSlots> slot;
    for (int k = 0; k < Rule::kNumSlots; ++k) slot[k] = slots[k] + column;
    for (int d = 0; d < kWidth; ++d) {
      Slots<Rule::kNumSlots> values;
      for (int k = 0; k < Rule::kNumSlots; ++k) values[k] = slot[k][d];
      rule.Step(grad[d], weight[d], values);
      for (int k = 0; k < Rule::kNumSlots; ++k) slot[k][d] = values[k];
    }
  }
  return column;
}

template <typename Rule>
JTE_VECTOR_CLONES void StepBlock(const RowBlock& block,
                                 const float* hyperparameters) {
  Rule rule(hyperparameters);
  for (int64_t i = 0; i < block.num_rows; ++i) {
    if (i < block.num_next_rows) block.arrays->Prefetch(block.next_rows[i]);
    const int64_t slot_row = block.slot_rows[i];
    std::array<float*, Rule::kNumSlots> slots;
    for (int k = 0; k < Rule::kNumSlots; ++k) {
      slots[k] = block.slots[k] + slot_row * block.dim;
    }
    if constexpr (kHasRowSlots<Rule>) {
      rule.BeginRow(SumOfSquares(block.gradient(i), block.dim),
                    block.slots[0][slot_row]);
    }
    // A vector of AVX-512, one of SSE, one element.
    int64_t column = 0;
    column = StepColumns<16>(rule, column, block.dim, block.gradient(i),
                             block.weight(i), slots);
    column = StepColumns<4>(rule, column, block.dim, block.gradient(i),
                            block.weight(i), slots);
    StepColumns<1>(rule, column, block.dim, block.gradient(i), block.weight(i),
                   slots);
  }
}

// One pass takes most of the time to compile of a rule: those with a function
// call per element have none, those with any power none with options.
template <typename Rule, bool kHasOptions>
constexpr StepEntriesFunction kStepEntries = StepEntries<Rule, kHasOptions>;
template <template <typename> typename Rule, bool kHasOptions>
constexpr StepEntriesFunction kStepEntries<Rule<AnyPower>, kHasOptions> =
    nullptr;
template <template <typename> typename Rule>
constexpr StepEntriesFunction kStepEntries<Rule<Power>, true> = nullptr;

template <typename Rule>
Steps AllSteps(const float*) {
  return {.block = StepBlock<Rule>,
          .entries = kStepEntries<Rule, /*kHasOptions=*/false>,
          .entries_with_options = kStepEntries<Rule, /*kHasOptions=*/true>};
}

// The steps with the first of the powers that serves.
template <template <typename> typename Rule, typename Power,
          typename... OtherPowers>
Steps StepsWithPower(const float* hyperparameters) {
  if constexpr (sizeof...(OtherPowers) > 0) {
    if (!Power::Serves(Rule<Power>::Exponent(hyperparameters))) {
      return StepsWithPower<Rule, OtherPowers...>(hyperparameters);
    }
  }
  return AllSteps<Rule<Power>>(hyperparameters);
}

template <typename Kernel>
constexpr Rule MakeRule(std::string_view name,
                        Steps (*choose_steps)(const float*)) {
  constexpr bool has_row_slots = kHasRowSlots<Kernel>;
  constexpr int num_slots = has_row_slots ? 1 : Kernel::kNumSlots;
  static_assert(num_slots <= kMaxSlots);
  return {.name = name,
          .num_slots = num_slots,
          .has_row_slots = has_row_slots,
          .num_hyperparameters = Kernel::kNumHyperparameters,
          .choose_steps = choose_steps};
}

template <typename Kernel>
constexpr Rule MakeRule(std::string_view name) {
  return MakeRule<Kernel>(name, AllSteps<Kernel>);
}

template <template <typename> typename Kernel, typename SpecialPower>
constexpr Rule MakePowerRule(std::string_view name) {
  return MakeRule<Kernel<Power>>(
      name, StepsWithPower<Kernel, SpecialPower, Power, AnyPower>);
}

constexpr Rule kRules[] = {
    MakeRule<SgdRule>("sgd"),
    MakeRule<AdagradRule>("adagrad"),
    MakeRule<RowwiseAdagradRule>("rowwise_adagrad"),
    MakePowerRule<AdagradMomentumRule, InverseSquareRoot>("adagrad_momentum"),
    MakeRule<AdamRule>("adam"),
    MakePowerRule<FtrlRule, SquareRoot>("ftrl"),
    MakeRule<LapropRule>("laprop"),
    MakePowerRule<F2aRule, SquareRoot>("f2a"),
    MakeRule<MomentumRule>("momentum"),
    MakeRule<LionRule>("lion"),
};

}  // namespace

std::span<const Rule> Rules() { return kRules; }

Result<Rule> FindRule(std::string_view name) {
  const auto rule = std::ranges::find(kRules, name, &Rule::name);
  if (rule != std::end(kRules)) return *rule;
  std::string choices;
  for (const Rule& choice : kRules) {
    if (!choices.empty()) choices += ", ";
    choices += choice.name;
  }
  return InvalidArgument("There is no update rule '", name, "'; choose one of ",
                         choices, ".");
}

}  // namespace jte::kernels
