// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The update in one pass: the sums of a row's gradient stay in registers until
// the row is stepped. OnePassServes says where.
//
// Two passes over blocks of rows (step_rows.h) write the sums to a cache and
// read them again, and ask the memory for rows in bursts, between which it
// waits. The bits are the same.
//
// What one pass takes of the time of two, SGD and Adagrad: one thread, medians
// of 15 rounds in turns, a quiet Xeon with AVX-512, tables of 256 MiB:
//
//   columns               16          32          64          128
//   16384 x 1, uniform    0.39, 0.51  0.43, 0.51  0.43, 0.71  0.93, 1.08
//   16384 x 20, uniform   0.60, 0.64  0.75, 0.76  0.90, 0.84  0.87, 0.90
//   4096 x 100, uniform   0.55, 0.64  0.72, 0.78  0.96, 0.91  0.98, 0.92
//
// 4096 x 20 uniform ids, tables of as many columns as have 64 MiB in float32,
// an EPYC (Zen 4) with both CPUs, SGD and Adagrad:
//
//   columns   8           16          32          64          128
//   float32   0.49, 0.39  as above
//   bfloat16  0.35, 0.45  0.53, 0.55  0.63, 0.66  0.75, 0.84  0.85, 0.99
//   float16   0.47, 0.56  0.59, 0.68  0.66, 0.71  0.62, 0.74  0.68, 0.87
//
// The first of these again with both weight decays: 0.31 and 0.50, then 0.41
// and 0.68, 0.65 and 0.86, 0.96 and 0.92, 0.92 and 0.96.
//
// Row-wise Adagrad of 64 columns and 16384 x 20 uniform ids, by Adagrad in the
// same process on an EPYC (Zen 4): 0.84 to 0.90 of its time in two passes, 0.59
// to 0.66 in one, four runs each.
//
// Threading: free functions over the caller's memory.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ENTRIES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_of_squares.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"

namespace jte::kernels {

template <typename Rule>
constexpr bool kHasRowSlots = requires { Rule::kNumRowSlots; };

// What OnePassServes rows of more than 64 columns for, and, without options,
// tables of 16 bits.
template <typename Rule>
constexpr bool kDoesLittle = !kHasRowSlots<Rule> && Rule::kNumSlots <= 1;

// The rows of the table and its slots, and the entries that are for them.
template <typename Rule, typename T>
struct RowTerms {
  PartitionOrder entries;
  int64_t last;  // entry
  ArrayRows<float> gradient;
  T* table;
  RowOptions options;
  std::optional<StochasticRounding> rounding;  // of 16 bits
  std::array<float*, Rule::kNumSlots> slots;
  float* row_slots;  // a number for each row, if the rule has them
  int64_t rows_ahead;
  int64_t samples_ahead;

  [[gnu::always_inline]] void PrefetchRow(int32_t row, int64_t column,
                                          int64_t num_columns) const {
    const int64_t place = row * gradient.dim + column;
    PrefetchTableRow(table + place,
                     num_columns * static_cast<int64_t>(sizeof(T)));
    for (const float* slot : slots) {
      PrefetchTableRow(slot + place,
                       num_columns * static_cast<int64_t>(sizeof(float)));
    }
    if constexpr (kHasRowSlots<Rule>) {
      PrefetchTableRow(row_slots + row, sizeof(float));
    }
  }

  // The rows that PrefetchFor does not ask for.
  [[gnu::always_inline]] void PrefetchFirstRows(int64_t begin) const {
    const int64_t end = std::min(begin + rows_ahead, last + 1);
    for (int64_t i = begin; i < end; ++i) {
      if (i == begin || entries.row(i) != entries.row(i - 1)) {
        PrefetchRow(entries.row(i), 0, gradient.dim);
      }
    }
  }

  // What entries after the `i`th need of these columns.
  [[gnu::always_inline]] void PrefetchFor(int64_t i, int64_t column,
                                          int64_t num_columns) const {
    const int64_t later = std::min(i + rows_ahead, last);
    // The first entry of a row asks for it.
    if (later > i && entries.row(later) != entries.row(later - 1)) {
      PrefetchRow(entries.row(later), column, num_columns);
    }
    const int32_t sample = entries.sample(std::min(i + samples_ahead, last));
    PrefetchBatchRow(gradient[sample] + column,
                     num_columns * static_cast<int64_t>(sizeof(float)));
  }
};

// Rounds kLanes numbers of a row, which begin with `column`.
template <int kLanes, typename T>
[[gnu::always_inline]] inline void StoreRounded(
    const float* values, const std::optional<StochasticRounding>& rounding,
    int32_t row, int64_t column, T* __restrict out) {
  if (!rounding) {
#pragma GCC unroll 1
    for (int d = 0; d < kLanes; ++d) out[d] = RoundToNearest<T>(values[d]);
    return;
  }
  const uint32_t first = FirstCounter(*rounding, row);
#pragma GCC unroll 1
  for (int d = 0; d < kLanes; ++d) {
    out[d] = RoundAtRandom<T>(values[d],
                              RandomBits(rounding->seed, first, column + d));
  }
}

// The options of kLanes columns.
template <int kLanes>
[[gnu::always_inline]] inline void PrepareLanes(const RowOptions& options,
                                                const float* weight,
                                                float* __restrict gradient) {
  if (!options.l2_weight_decay) return;
#pragma GCC unroll 1
  for (int d = 0; d < kLanes; ++d) {
    gradient[d] = WithDecay(gradient[d], *options.l2_weight_decay, weight[d]);
  }
}

template <int kLanes>
[[gnu::always_inline]] inline void FinishLanes(const RowOptions& options,
                                               const float* old_weight,
                                               float* __restrict weight) {
  if (options.decoupled_weight_decay) {
#pragma GCC unroll 1
    for (int d = 0; d < kLanes; ++d) {
      weight[d] =
          Decayed(weight[d], *options.decoupled_weight_decay, old_weight[d]);
    }
  }
#pragma GCC unroll 1
  for (int d = 0; d < kLanes; ++d) {
    weight[d] = Limited(weight[d], options.min_value, options.max_value);
  }
}

// Sums and steps the columns [column, column + kWidth) of the row that entry
// `i` is of. Returns the first entry of the next row.
//
// If the rule has row slots, kWidth is all columns: it begins with the row.
//
// Columns come by one register of kLanes each. In the loops over single
// columns, GCC 12 makes scalars of a loop of so many before it looks for
// vectors, unless it is told not to unroll it.
template <int kLanes, int kWidth, bool kHasOptions, typename Rule, typename T>
[[gnu::always_inline]] inline int64_t StepPiece(Rule& rule,
                                                const RowTerms<Rule, T>& terms,
                                                int64_t i, int64_t column) {
  const int32_t row = terms.entries.row(i);
  constexpr int kNumVectors = kWidth / kLanes;
  Vector<float, kLanes> sums[kNumVectors] = {};
  do {
    terms.PrefetchFor(i, column, kWidth);
    const float* __restrict grad =
        terms.gradient[terms.entries.sample(i)] + column;
    const float gain = terms.entries.gain(i);
#pragma GCC unroll 8
    for (int k = 0; k < kNumVectors; ++k) {
      Vector<float, kLanes> values;
      ReadFloats<kLanes>(grad + k * kLanes, values);
      sums[k] += gain * values;
    }
    ++i;
  } while (i <= terms.last && terms.entries.row(i) == row);

  if constexpr (kHasRowSlots<Rule>) {
    float row_sums[kWidth];
#pragma GCC unroll 8
    for (int k = 0; k < kNumVectors; ++k) {
      std::memcpy(row_sums + k * kLanes, &sums[k], sizeof(sums[k]));
    }
    rule.BeginRow(SumOfSquares(row_sums, kWidth), terms.row_slots[row]);
  }
  const int64_t place = row * terms.gradient.dim + column;
#pragma GCC unroll 8
  for (int k = 0; k < kNumVectors; ++k) {
    // One array for all sums is in memory with GCC 14.
    float sum[kLanes];
    std::memcpy(sum, &sums[k], sizeof(sum));
    T* stored = terms.table + place + k * kLanes;
    float wide[kLanes];  // of 16 bits
    float* __restrict weight = wide;
    if constexpr (std::is_same_v<T, float>) {
      weight = stored;
    } else {
      Vector<float, kLanes> values;
      ReadFloats<kLanes>(stored, values);
      std::memcpy(wide, &values, sizeof(wide));
    }
    [[maybe_unused]] float old_weight[kLanes];
    if constexpr (kHasOptions) {
      std::memcpy(old_weight, weight, sizeof(old_weight));
      PrepareLanes<kLanes>(terms.options, old_weight, sum);
    }
    std::array<float* __restrict, Rule::kNumSlots> slot;
    for (int j = 0; j < Rule::kNumSlots; ++j) {
      slot[j] = terms.slots[j] + place + k * kLanes;
    }
#pragma GCC unroll 1
    for (int d = 0; d < kLanes; ++d) {
      Slots<Rule::kNumSlots> values;
      for (int j = 0; j < Rule::kNumSlots; ++j) values[j] = slot[j][d];
      rule.Step(sum[d], weight[d], values);
      for (int j = 0; j < Rule::kNumSlots; ++j) slot[j][d] = values[j];
    }
    if constexpr (kHasOptions) {
      FinishLanes<kLanes>(terms.options, old_weight, weight);
    }
    if constexpr (!std::is_same_v<T, float>) {
      StoreRounded<kLanes>(wide, terms.rounding, row, column + k * kLanes,
                           stored);
    }
  }
  return i;
}

// kDim: of all columns; 0 for any multiple of 64. With AVX-512 the sums of 128
// are in registers at once: 0.92 (SGD) and 0.93 (Adagrad) of the time in two
// halves, on an EPYC.
template <int kLanes, int kDim, bool kHasOptions, typename Rule, typename T>
[[gnu::always_inline]] inline void StepRows(const PartitionOrder& entries,
                                            int64_t begin, int64_t end,
                                            const EntriesUpdate& update,
                                            std::span<T> table) {
  // Sums take half of the registers at most, but where all are needed at once.
  constexpr int kWidth =
      kHasRowSlots<Rule> ? kDim : std::min(kDim > 0 ? kDim : 64, 8 * kLanes);
  Rule rule(update.hyperparameters);
  const int64_t dim = kDim > 0 ? kDim : update.gradient.dim;
  // A copy stays in registers, whatever is written.
  RowTerms<Rule, T> terms{
      .entries = entries,
      .last = end - 1,
      .gradient = {update.gradient.values, dim},
      .table = table.data(),
      .options = update.options,
      .rounding = update.rounding,
      .slots = {},
      .row_slots = update.slots[0],
      .rows_ahead = TableRowsAhead(dim * sizeof(float)),
      .samples_ahead = PrefetchDistance(dim * sizeof(float))};
  std::copy_n(update.slots.begin(), Rule::kNumSlots, terms.slots.begin());
  terms.PrefetchFirstRows(begin);
  for (int64_t i = begin; i < end;) {
    int64_t next = i;
    for (int64_t column = 0; column < dim; column += kWidth) {
      next = StepPiece<kLanes, kWidth, kHasOptions>(rule, terms, i, column);
    }
    i = next;
  }
}

template <typename Rule, bool kHasOptions>
void StepEntries(const PartitionOrder& entries, int64_t begin, int64_t end,
                 const EntriesUpdate& update) {
  const auto step = [&]<int kLanes, typename T>(
                        std::span<T> table) __attribute__((always_inline)) {
    const auto step_rows = [&]<int kRowLanes, int kDim>()
                               __attribute__((always_inline)) {
                                 StepRows<kRowLanes, kDim, kHasOptions, Rule>(
                                     entries, begin, end, update, table);
                               };
    switch (update.gradient.dim) {
      case 8:
        // Half a register of AVX-512.
        return step_rows.template operator()<std::min(kLanes, 8), 8>();
      case 16:
        return step_rows.template operator()<kLanes, 16>();
      case 32:
        return step_rows.template operator()<kLanes, 32>();
      case 64:
        return step_rows.template operator()<kLanes, 64>();
    }
    if constexpr (kDoesLittle<Rule>) {
      if (update.gradient.dim == 128) {
        return step_rows.template operator()<kLanes, 128>();
      }
      step_rows.template operator()<kLanes, 0>();
    }
  };
  std::visit(
      [&step]<typename T>(std::span<T> table) {
        if constexpr (std::is_same_v<T, float> ||
                      (kDoesLittle<Rule> && !kHasOptions)) {
          WithVectorLanes([&step, table]<int kLanes>()
                              __attribute__((always_inline)) {
                                step.template operator()<kLanes>(table);
                              });
        }
      },
      update.table);
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ENTRIES_H_
