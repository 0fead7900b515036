// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A tile has a row. Its gradient stays in registers from the first term to the
// step. The optimizers are those of the CPU, kernels/update/update_rules.h.

#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_squares.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_sums.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/vector.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/power.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"

namespace jte::gpu {
namespace {

template <typename Rule>
constexpr bool kHasRowSlots = requires { Rule::kNumRowSlots; };

// The power that the CPU takes: the first of these that serves the exponent,
// which is known here only when the kernel runs. All threads have the same.
template <typename Special>
class PowerOf {
 public:
  JTE_DEVICE explicit PowerOf(float exponent)
      : is_special_(Special::Serves(exponent)),
        is_any_(!is_special_ && !kernels::Power::Serves(exponent)),
        power_(exponent),
        any_(exponent) {}

  JTE_DEVICE float operator()(float x) const {
    if (is_special_) return Special(0.0f)(x);
    return is_any_ ? any_(x) : power_(x);
  }

 private:
  bool is_special_;
  bool is_any_;
  kernels::Power power_;
  kernels::AnyPower any_;
};

template <typename Rule>
constexpr bool kHasPower = false;
template <template <typename> typename Rule, typename Special>
constexpr bool kHasPower<Rule<PowerOf<Special>>> = true;

JTE_DEVICE bool IsFinite(float x) {
  return (std::bit_cast<uint32_t>(x) & kFloatInfinity) != kFloatInfinity;
}

template <typename Rule, typename T, int kSize, int kChunks>
struct Step {
  static constexpr int kThreads = 128;
  // As many as leave registers to a thread for all that it has of a row, on
  // every GPU.
  static constexpr int kMinBlocks =
      kChunks > 1 ? 3
      : kHasPower<Rule> || (Rule::kNumSlots > 1 && sizeof(T) < sizeof(float))
          ? 5
          : 6;
  // Whether weights and slots are read before the gradient is summed. Those of
  // wide rows would not stay in registers that long.
  static constexpr bool kReadsFirst = kChunks == 1;
  static constexpr bool kExchanges = true;
  using Sum = Sums<kSize, kChunks>;
  using Piece = PieceOfRow<kSize, kChunks>;
  using Row = RowToSum<kSize, kChunks>;
  using Squares = SumOfSquares<kSize, kChunks>;

  RowTerms terms;
  const float* block_sums;
  Optimizer optimizer;
  T* table;
  float* slots[kernels::kMaxSlots];
  int lanes;

  JTE_DEVICE void operator()(const Thread& thread) const {
    ForEachRow<kSize, kChunks>(
        thread, lanes, kThreads, terms, block_sums,
        [this](int64_t row, int lane) { PrefetchRow(row, lane); },
        [this, &thread](const Row& row, const Piece& piece) {
          StepRow(thread, row, piece);
        });
  }

  // Asks for the weights and slots of a row, a line of the cache at a time.
  JTE_DEVICE void PrefetchRow(int64_t row, int lane) const {
    PrefetchLines(table + row * terms.dim, lane);
    if constexpr (kHasRowSlots<Rule>) {
      if (lane == 0) Prefetch(slots[0] + row);
    } else {
      JTE_UNROLL
      for (int k = 0; k < Rule::kNumSlots; ++k) {
        PrefetchLines(slots[k] + row * terms.dim, lane);
      }
    }
  }

  template <typename Value>
  JTE_DEVICE void PrefetchLines(const Value* values, int lane) const {
    constexpr int64_t kLine = 128 / sizeof(Value);
    for (int64_t d = lane * kLine; d < terms.dim; d += lanes * kLine) {
      Prefetch(values + d);
    }
  }

  // The gradient of the first window stays in registers; those of others, which
  // most rows do not have, are summed anew each time.
  JTE_DEVICE void StepRow(const Thread& thread, const Row& row,
                          const Piece& first) const {
    const RowOptions& options = optimizer.options;
    // Before what is waited for: the sum.
    Values values;
    if constexpr (kReadsFirst) {
      if (first.has(0)) values = ReadValues(row.row, first.column(0));
    }
    float slot_of_row = 0.0f;
    if constexpr (kHasRowSlots<Rule>) {
      if (first.lane == 0) slot_of_row = slots[0][row.row];
    }
    Sum gradient = row.Sum(first);
    if (options.skip_non_finite_gradients) {
      bool is_finite = true;
      ForEachWindow(
          row, first, gradient, [](const Piece&, Sum&) {},
          [&is_finite](const Piece&, const Sum& sum) {
            is_finite &= IsFiniteSum(sum);
          });
      if (thread.Any(!is_finite, lanes)) return;
    }
    float factor = 1.0f;
    if (options.has_max_gradient_norm) {
      Squares squares;
      ForEachWindow(
          row, first, gradient, [](const Piece&, Sum&) {},
          [this, &thread, &squares](const Piece& piece, const Sum& sum) {
            squares.Add(thread, lanes, sum.InRow(piece));
          });
      factor = FactorOfNorm(std::sqrt(squares.Total(thread, lanes)));
    }
    const auto prepare = [this, &row, factor](const Piece& piece, Sum& sum) {
      Prepare(row.row, piece, factor, sum);
    };
    prepare(first, gradient);

    float numbers[kMaxHyperparameters];
    JTE_UNROLL
    for (int k = 0; k < Rule::kNumHyperparameters; ++k) {
      numbers[k] = optimizer.hyperparameters[k].Read();
    }
    Rule rule(numbers);
    if constexpr (kHasRowSlots<Rule>) {
      Squares squares;
      ForEachWindow(
          row, first, gradient, prepare,
          [this, &thread, &squares](const Piece& piece, const Sum& sum) {
            squares.Add(thread, lanes, sum.InRow(piece));
          });
      const float total = squares.Total(thread, lanes);
      float accumulator = thread.Shuffle(slot_of_row, 0, lanes);
      rule.BeginRow(total, accumulator);
      if (first.lane == 0) slots[0][row.row] = accumulator;
    }
    if constexpr (kReadsFirst) {
      if (first.has(0)) {
        StepColumns(rule, row.row, first.column(0), gradient.chunk[0], values);
      }
    } else {
      ForEachWindow(row, first, gradient, prepare,
                    [this, &rule, &row](const Piece& piece, const Sum& sum) {
                      JTE_UNROLL
                      for (int c = 0; c < kChunks; ++c) {
                        if (!piece.has(c)) continue;
                        const int64_t column = piece.column(c);
                        StepColumns(rule, row.row, column, sum.chunk[c],
                                    ReadValues(row.row, column));
                      }
                    });
    }
  }

  // Calls visit(piece, gradient) for the first window, whose gradient is given,
  // and for the others, once prepare(piece, gradient) was called.
  template <typename Prepare, typename Visit>
  static JTE_DEVICE void ForEachWindow(const Row& row, const Piece& first,
                                       const Sum& gradient,
                                       const Prepare& prepare,
                                       const Visit& visit) {
    visit(first, gradient);
    if constexpr (kHasWindows<kSize>) {
      for (Piece piece = first.Next(); piece.is_in_row();
           piece = piece.Next()) {
        Sum sum = row.CallSum(piece);
        prepare(piece, sum);
        visit(piece, sum);
      }
    }
  }

  static JTE_DEVICE bool IsFiniteSum(const Sum& sum) {
    bool is_finite = true;
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) {
        is_finite &= IsFinite(sum.chunk[c].v[d]);
      }
    }
    return is_finite;
  }

  // That a gradient is multiplied by.
  JTE_DEVICE float FactorOfNorm(float norm) const {
    float limit = optimizer.options.max_gradient_norm.Read();
    if (!(limit > 0)) limit = std::numeric_limits<float>::quiet_NaN();
    // In this order of arguments a NaN stays one.
    return limit / std::max(norm, limit);
  }

  // What options do to the gradient before the step.
  JTE_DEVICE void Prepare(int64_t row, const Piece& piece, float factor,
                          Sum& gradient) const {
    if (optimizer.options.has_max_gradient_norm) {
      JTE_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        JTE_UNROLL
        for (int d = 0; d < kSize; ++d) gradient.chunk[c].v[d] *= factor;
      }
    }
    if (optimizer.options.has_l2_weight_decay) AddDecay(row, piece, gradient);
  }

  JTE_DEVICE void AddDecay(int64_t row, const Piece& piece,
                           Sum& gradient) const {
    const float decay = optimizer.options.l2_weight_decay.Read();
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      if (!piece.has(c)) continue;
      const auto weights =
          Load<kSize>(table + row * terms.dim + piece.column(c));
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) {
        gradient.chunk[c].v[d] += decay * ToFloat(weights.v[d]);
      }
    }
  }

  // Neighbouring weights of a row, and their slots.
  struct Values {
    static constexpr int kNumSlots = Rule::kNumSlots;
    Vector<T, kSize> weights;
    Vector<float, kSize> slots[kNumSlots > 0 ? kNumSlots : 1];
  };

  JTE_DEVICE Values ReadValues(int64_t row, int64_t column) const {
    const int64_t place = row * terms.dim + column;
    Values values;
    values.weights = Load<kSize>(table + place);
    JTE_UNROLL
    for (int k = 0; k < Rule::kNumSlots; ++k) {
      values.slots[k] = Load<kSize>(slots[k] + place);
    }
    return values;
  }

  JTE_DEVICE void StepColumns(const Rule& rule, int64_t row, int64_t column,
                              const Vector<float, kSize>& gradient,
                              Values values) const {
    constexpr int kNumSlots = Rule::kNumSlots;
    JTE_UNROLL
    for (int d = 0; d < kSize; ++d) {
      kernels::Slots<kNumSlots> of_column;
      JTE_UNROLL
      for (int k = 0; k < kNumSlots; ++k) of_column[k] = values.slots[k].v[d];
      const float old_weight = ToFloat(values.weights.v[d]);
      float weight = old_weight;
      rule.Step(gradient.v[d], weight, of_column);
      values.weights.v[d] = Finish(weight, old_weight, row, column + d);
      JTE_UNROLL
      for (int k = 0; k < kNumSlots; ++k) values.slots[k].v[d] = of_column[k];
    }
    const int64_t place = row * terms.dim + column;
    Store(table + place, values.weights);
    JTE_UNROLL
    for (int k = 0; k < kNumSlots; ++k) {
      Store(slots[k] + place, values.slots[k]);
    }
  }

  // What comes after the step, and the rounding.
  JTE_DEVICE T Finish(float weight, float old_weight, int64_t row,
                      int64_t column) const {
    const RowOptions& options = optimizer.options;
    if (options.has_decoupled_weight_decay) {
      weight -= options.decoupled_weight_decay.Read() * old_weight;
    }
    if (options.has_limits) {
      // In this order of arguments a NaN stays one.
      weight = std::min(std::max(weight, options.min_value), options.max_value);
    }
    if constexpr (std::is_same_v<T, float>) {
      return weight;
    } else {
      const Rounding& rounding = optimizer.rounding;
      if (rounding.seed_and_first_shard == nullptr) {
        return RoundToNearest<T>(weight);
      }
      const kernels::StochasticRounding from{
          .seed = rounding.seed_and_first_shard[0],
          .num_shards = rounding.num_shards,
          .first_shard = rounding.seed_and_first_shard[1],
          .rows_per_shard = rounding.rows_per_shard};
      return RoundAtRandom<T>(
          weight, kernels::RandomBits(
                      from.seed, kernels::FirstCounter(from, row), column));
    }
  }
};

template <typename Rule, typename T>
const char* StepTable(Stream stream, const RowTerms& terms,
                      int64_t max_row_blocks, float* block_sums,
                      const Optimizer& optimizer, const Tables& tables) {
  if (const char* error =
          LaunchSumBlocks(stream, terms, max_row_blocks, block_sums)) {
    return error;
  }
  return ForWidth(terms.dim, [&]<int kSize, int kChunks>(int lanes) {
    using StepKernel = Step<Rule, T, kSize, kChunks>;
    StepKernel step{terms, block_sums, optimizer, static_cast<T*>(tables.table),
                    {},    lanes};
    for (int k = 0; k < kernels::kMaxSlots; ++k) {
      step.slots[k] = tables.slots[k];
    }
    return Launch(
        stream,
        NumBlocks<StepKernel>(TilesForRows(terms.num_cells, lanes) * lanes),
        step);
  });
}

using StepFunction = const char* (*)(Stream, const RowTerms&, int64_t, float*,
                                     const Optimizer&, const Tables&);

template <typename Rule>
StepFunction ForType(TableType type) {
  switch (type) {
    case TableType::kFloat:
      return StepTable<Rule, float>;
    case TableType::kBfloat16:
      return StepTable<Rule, Bfloat16>;
    case TableType::kFloat16:
      return StepTable<Rule, Float16>;
  }
  return nullptr;
}

template <template <typename> typename Rule, typename SpecialPower>
StepFunction ForType(TableType type) {
  return ForType<Rule<PowerOf<SpecialPower>>>(type);
}

struct NamedRule {
  std::string_view name;
  StepFunction (*for_type)(TableType type);
};

constexpr NamedRule kRules[] = {
    {"sgd", ForType<kernels::SgdRule>},
    {"adagrad", ForType<kernels::AdagradRule>},
    {"rowwise_adagrad", ForType<kernels::RowwiseAdagradRule>},
    {"adagrad_momentum",
     ForType<kernels::AdagradMomentumRule, kernels::InverseSquareRoot>},
    {"adam", ForType<kernels::AdamRule>},
    {"ftrl", ForType<kernels::FtrlRule, kernels::SquareRoot>},
    {"laprop", ForType<kernels::LapropRule>},
    {"f2a", ForType<kernels::F2aRule, kernels::SquareRoot>},
    {"momentum", ForType<kernels::MomentumRule>},
    {"lion", ForType<kernels::LionRule>},
};

}  // namespace

const char* StepRows(Stream stream, std::string_view rule,
                     const RowTerms& terms, int64_t max_row_blocks,
                     float* block_sums, const Optimizer& optimizer,
                     const Tables& tables) {
  for (const NamedRule& candidate : kRules) {
    if (candidate.name != rule) continue;
    return candidate.for_type(tables.type)(stream, terms, max_row_blocks,
                                           block_sums, optimizer, tables);
  }
  return "There is no such update rule for GPUs.";
}

}  // namespace jte::gpu
