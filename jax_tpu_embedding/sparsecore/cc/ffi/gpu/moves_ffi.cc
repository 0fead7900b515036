// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Targets "jte_pool_samples_cuda", the lookup, "jte_step_rows_cuda", the
// update, and "jte_sum_rows_cuda", its gradients, from the plans of
// plans_ffi.cc; and "jte_read_rows_cuda" and "jte_write_rows_cuda", rows of a
// table as values.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/on_stream.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/plan_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/optimizer_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

struct TermsAttributes {
  int64_t batch_size_per_sc;
  int64_t block_size;
  bool has_one_source;
  bool is_sorted;  // the entries, in the buffers

  static auto Members() {
    using xffi::StructMember;
    return std::tuple(StructMember<int64_t>("batch_size_per_sc"),
                      StructMember<int64_t>("block_size"),
                      StructMember<bool>("has_one_source"),
                      StructMember<bool>("is_sorted"));
  }
};

struct StepAttributes {
  OptimizerAttributes optimizer;
  TermsAttributes terms;

  static auto Members() {
    return std::tuple_cat(OptimizerAttributes::Members(),
                          TermsAttributes::Members());
  }
};

using FloatMatrix = xffi::BufferR2<xffi::F32>;

gpu::QuantizedTo ReadQuantization(std::span<const double> numbers) {
  if (numbers.empty()) return {};
  const auto span = static_cast<float>(numbers[1] - numbers[0]);
  const auto steps = static_cast<float>(numbers[2] - 1);
  return {.is_on = true,
          .min = static_cast<float>(numbers[0]),
          .max = static_cast<float>(numbers[1]),
          .scale = steps / span,
          .step = span / steps};
}

// A table of int32 has rows of codes.
Result<void> PoolSamples(gpu::Stream stream, const IntVector& begins,
                         const IntVector& rows, const FloatVector& gains,
                         const IntVector& flaws,
                         const xffi::AnyBuffer& table_buffer,
                         const FloatMatrix& activations,
                         std::span<const double> quantization) {
  const auto shape = activations.dimensions();
  const auto num_samples = static_cast<int64_t>(begins.element_count()) - 1;
  if (shape[0] != num_samples) {
    return InvalidArgument("There are activations of ", shape[0],
                           " samples, expected ", num_samples, ".");
  }
  const gpu::ConstSampleGroups groups{
      .begins = begins.typed_data(),
      .rows = rows.typed_data(),
      .gains = gains.typed_data(),
      .flaws = reinterpret_cast<const gpu::Flaws*>(flaws.typed_data())};
  const auto pool = [&]<typename T>(const T* table) {
    return ToResult(gpu::PoolSamples<T>(
        stream, groups, static_cast<int64_t>(rows.element_count()), table,
        shape[0], shape[1], ReadQuantization(quantization),
        activations.typed_data()));
  };
  if (table_buffer.element_type() == xffi::S32) {
    const int64_t num_words = kernels::CodeWordsPerRow(shape[1]);
    const auto of_table = table_buffer.dimensions();
    if (of_table.size() != 2 || of_table[1] != num_words) {
      return InvalidArgument(
          "The table of int8 codes has rank ", of_table.size(), " and ",
          of_table.size() < 2 ? 1 : of_table[1], " words per row, expected ",
          num_words, " for activations of ", shape[1], " columns.");
    }
    return pool(
        static_cast<const kernels::CodeWord*>(table_buffer.untyped_data()));
  }
  JTE_ASSIGN_OR_RETURN(const auto table, ToTable(table_buffer));
  if (shape[1] != table.dim) {
    return InvalidArgument("The activations have ", shape[1],
                           " columns, expected the table's ", table.dim, ".");
  }
  return std::visit([&pool](auto values) { return pool(values.data()); },
                    table.values);
}

// Gains of no elements: all are 1.
gpu::RowTerms ToTerms(const RowGroupBuffers& groups, const FloatVector& gains,
                      const FloatMatrix& gradient,
                      const TermsAttributes& attributes) {
  const auto [rows, samples, starts, cells, blocks, long_rows, counts] =
      groups.Pointers();
  return {
      .groups = {.rows = rows,
                 .samples = samples,
                 .starts = starts,
                 .cells = attributes.is_sorted ? nullptr : cells,
                 .blocks = blocks,
                 .long_rows = long_rows,
                 .counts = counts},
      .cell_gains = gains.element_count() == 0 ? nullptr : gains.typed_data(),
      .gradient = gradient.typed_data(),
      .dim = gradient.dimensions()[1],
      .batch_size_per_sc = attributes.batch_size_per_sc,
      .has_one_source = attributes.has_one_source,
      .block_size = attributes.block_size,
      .num_cells = groups.num_cells()};
}

Result<gpu::Number> ReadNumber(xffi::RemainingArgs args, size_t k) {
  const auto arg = args.get<xffi::AnyBuffer>(k);
  if (arg.has_value() && arg->element_count() == 1) {
    if (arg->element_type() == xffi::F32) {
      return gpu::Number{.at = arg->untyped_data()};
    }
    if (arg->element_type() == xffi::PRED) {
      return gpu::Number{.at = arg->untyped_data(), .is_bool = true};
    }
  }
  return InvalidArgument("Operand ", k,
                         " must be one float32 number or one bool.");
}

// Moves the numbers of the row options from the end of `numbers`.
Result<gpu::RowOptions> TakeRowOptions(const OptimizerAttributes& attributes,
                                       std::vector<gpu::Number>& numbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  gpu::RowOptions options{};
  options.min_value = attributes.min_value;
  options.max_value = attributes.max_value;
  options.has_limits =
      attributes.min_value > -kInfinity || attributes.max_value < kInfinity;
  std::vector<gpu::Number*> values;  // of those that have a number
  for (const auto part : std::views::split(attributes.row_options, ',')) {
    const std::string_view name(part.begin(), part.end());
    if (name.empty()) continue;
    if (name == "skip_non_finite_gradients") {
      options.skip_non_finite_gradients = true;
    } else if (name == "max_gradient_norm") {
      options.has_max_gradient_norm = true;
      values.push_back(&options.max_gradient_norm);
    } else if (name == "l2_weight_decay") {
      options.has_l2_weight_decay = true;
      values.push_back(&options.l2_weight_decay);
    } else if (name == "decoupled_weight_decay") {
      options.has_decoupled_weight_decay = true;
      values.push_back(&options.decoupled_weight_decay);
    } else {
      return InvalidArgument("There is no row option '", name, "'.");
    }
  }
  if (numbers.size() < values.size()) {
    return InvalidArgument(
        "Got ", numbers.size(), " hyperparameters, expected ", values.size(),
        " or more with the row options '", attributes.row_options, "'.");
  }
  const size_t first = numbers.size() - values.size();
  for (size_t k = 0; k < values.size(); ++k) *values[k] = numbers[first + k];
  numbers.resize(first);
  return options;
}

// From the operands from number `k` on.
Result<gpu::Optimizer> ReadOptimizer(xffi::RemainingArgs args, size_t k,
                                     const OptimizerAttributes& attributes,
                                     int64_t num_rows) {
  std::vector<gpu::Number> numbers;
  for (int64_t i = 0; i < attributes.num_hyperparameters; ++i, ++k) {
    JTE_ASSIGN_OR_RETURN(const auto number, ReadNumber(args, k));
    numbers.push_back(number);
  }
  gpu::Optimizer optimizer{};
  JTE_ASSIGN_OR_RETURN(optimizer.options, TakeRowOptions(attributes, numbers));
  for (const float value : attributes.static_params) {
    numbers.push_back({.value = value});
  }
  if (numbers.size() > gpu::kMaxHyperparameters) {
    return InvalidArgument("Got ", numbers.size(),
                           " hyperparameters, expected at most ",
                           gpu::kMaxHyperparameters, ".");
  }
  std::ranges::copy(numbers, optimizer.hyperparameters);
  if (!attributes.stochastic_rounding) return optimizer;
  JTE_ASSIGN_OR_RETURN(const auto rounding,
                       ReadRoundingOperand(args, k, attributes, num_rows));
  optimizer.rounding = {.seed_and_first_shard = rounding.seed_and_first_shard,
                        .num_shards = attributes.rounding_num_shards,
                        .rows_per_shard = rounding.rows_per_shard};
  return optimizer;
}

gpu::TableType TypeOf(const Table& table) {
  constexpr gpu::TableType kTypes[] = {gpu::TableType::kFloat,
                                       gpu::TableType::kBfloat16,
                                       gpu::TableType::kFloat16};
  return kTypes[table.values.index()];
}

// Result k, which is the alias of operand k.
Result<xffi::AnyBuffer> ReadAlias(xffi::RemainingArgs args,
                                  xffi::RemainingRets rets, size_t k) {
  const auto arg = args.get<xffi::AnyBuffer>(k);
  auto ret = rets.get<xffi::AnyBuffer>(k);
  if (arg.has_error() || ret.has_error() ||
      arg->untyped_data() != (*ret)->untyped_data()) {
    return FailedPrecondition("Table or slot ", k,
                              " and its update are different buffers. Alias "
                              "them in the custom call.");
  }
  return *arg;
}

Result<void> StepRows(gpu::Stream stream, const RowGroupBuffers& groups,
                      const FloatVector& gains, const FloatMatrix& gradient,
                      xffi::RemainingArgs args, xffi::RemainingRets rets,
                      const StepAttributes& attributes) {
  JTE_RETURN_IF_ERROR(CheckRowGroups(groups));
  // The results: table, slots and block sums.
  const size_t num_tables = rets.size() - 1;
  if (rets.size() < 2 || num_tables > 1 + kernels::kMaxSlots ||
      args.size() < num_tables) {
    return InvalidArgument("Got ", args.size(), " operands and ", rets.size(),
                           " results, expected a table, up to ",
                           kernels::kMaxSlots, " slots, and block sums.");
  }
  JTE_ASSIGN_OR_RETURN(const auto table_buffer, ReadAlias(args, rets, 0));
  JTE_ASSIGN_OR_RETURN(const auto table, ToTable(table_buffer));
  gpu::Tables tables{
      .table = table_buffer.untyped_data(), .type = TypeOf(table), .slots = {}};
  for (size_t k = 1; k < num_tables; ++k) {
    JTE_ASSIGN_OR_RETURN(const auto slot, ReadAlias(args, rets, k));
    JTE_ASSIGN_OR_RETURN(const auto matrix, ToMatrix(slot, "A slot"));
    tables.slots[k - 1] = matrix.values.data();
  }
  auto block_sums = rets.get<FloatMatrix>(num_tables);
  if (block_sums.has_error() ||
      (*block_sums)->dimensions()[0] != groups.num_blocks()) {
    return InvalidArgument("The block sums must be float32[",
                           groups.num_blocks(), ", ", table.dim, "].");
  }
  const auto shape = gradient.dimensions();
  if (shape[1] != table.dim) {
    return InvalidArgument("The gradient has ", shape[1],
                           " columns, expected the table's ", table.dim, ".");
  }
  JTE_ASSIGN_OR_RETURN(
      const auto optimizer,
      ReadOptimizer(args, num_tables, attributes.optimizer, table.num_rows));
  return ToResult(gpu::StepRows(
      stream, attributes.optimizer.rule,
      ToTerms(groups, gains, gradient, attributes.terms), groups.num_blocks(),
      (*block_sums)->typed_data(), optimizer, tables));
}

// requests: of no elements, if rows follow each other.
Result<void> SumRows(gpu::Stream stream, const RowGroupBuffers& groups,
                     const FloatVector& gains, const FloatMatrix& gradient,
                     const IntVector& requests, const IntVector& result_rows,
                     const FloatMatrix& sums, const FloatMatrix& block_sums,
                     const TermsAttributes& attributes) {
  JTE_RETURN_IF_ERROR(CheckRowGroups(groups));
  const auto num_places = static_cast<int64_t>(result_rows.element_count());
  const auto num_requests = static_cast<int64_t>(requests.element_count());
  const int64_t dim = gradient.dimensions()[1];
  if (sums.dimensions()[0] != num_places || sums.dimensions()[1] != dim ||
      (num_requests != 0 && num_requests != num_places)) {
    return InvalidArgument("There are ", num_requests, " requests, ",
                           num_places, " rows and sums of shape [",
                           sums.dimensions()[0], ", ", sums.dimensions()[1],
                           "], expected as many of all and ", dim, " columns.");
  }
  if (block_sums.dimensions()[0] != groups.num_blocks() ||
      block_sums.dimensions()[1] != dim) {
    return InvalidArgument("The block sums must be float32[",
                           groups.num_blocks(), ", ", dim, "].");
  }
  return ToResult(gpu::SumRows(
      stream, ToTerms(groups, gains, gradient, attributes), groups.num_blocks(),
      block_sums.typed_data(),
      {.requests = num_requests == 0 ? nullptr : requests.typed_data(),
       .num_places = num_places,
       .rows = result_rows.typed_data(),
       .sums = sums.typed_data()}));
}

Result<void> CheckRows(const Table& table, const IntVector& rows,
                       const Table& values) {
  const auto num_rows = static_cast<int64_t>(rows.element_count());
  if (values.num_rows == num_rows && values.dim == table.dim &&
      values.values.index() == table.values.index()) {
    return {};
  }
  return InvalidArgument("The values have shape [", values.num_rows, ", ",
                         values.dim, "], expected [", num_rows, ", ", table.dim,
                         "], and the type of the table.");
}

gpu::RowsOfTable RowsOf(const Table& table, const IntVector& rows) {
  return {.rows = rows.typed_data(),
          .size = static_cast<int64_t>(rows.element_count()),
          .num_table_rows = table.num_rows,
          .dim = table.dim};
}

// A table whose rows are read. Words of codes are copied as if they were
// floats.
Result<Table> ToTableOrCodes(const xffi::AnyBuffer& buffer) {
  const auto shape = buffer.dimensions();
  if (buffer.element_type() != xffi::S32 || shape.size() != 2) {
    return ToTable(buffer);
  }
  return Table{.values = std::span(static_cast<float*>(buffer.untyped_data()),
                                   buffer.element_count()),
               .num_rows = shape[0],
               .dim = shape[1]};
}

Result<void> ReadRows(gpu::Stream stream, const IntVector& rows,
                      const xffi::AnyBuffer& table_buffer,
                      const xffi::AnyBuffer& values_buffer) {
  JTE_ASSIGN_OR_RETURN(const auto table, ToTableOrCodes(table_buffer));
  JTE_ASSIGN_OR_RETURN(const auto values, ToTableOrCodes(values_buffer));
  JTE_RETURN_IF_ERROR(CheckRows(table, rows, values));
  return std::visit(
      [&]<typename T>(std::span<T> from) {
        return ToResult(
            gpu::ReadRows<T>(stream, RowsOf(table, rows), from.data(),
                             static_cast<T*>(values_buffer.untyped_data())));
      },
      table.values);
}

// The operands end with the table, and those that are not read.
Result<void> WriteRows(gpu::Stream stream, const IntVector& rows,
                       const xffi::AnyBuffer& values_buffer,
                       xffi::RemainingArgs args, xffi::RemainingRets rets) {
  JTE_ASSIGN_OR_RETURN(const auto table_buffer, ReadAlias(args, rets, 0));
  JTE_ASSIGN_OR_RETURN(const auto table, ToTable(table_buffer));
  JTE_ASSIGN_OR_RETURN(const auto values, ToTable(values_buffer));
  JTE_RETURN_IF_ERROR(CheckRows(table, rows, values));
  return std::visit(
      [&]<typename T>(std::span<T> to) {
        return ToResult(gpu::WriteRows<T>(
            stream, RowsOf(table, rows),
            static_cast<const T*>(values_buffer.untyped_data()), to.data()));
      },
      table.values);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JtePoolSamplesCuda, kOnStream<PoolSamples>,
    BindOnStream()
        .Arg<IntVector>()        // begins
        .Arg<IntVector>()        // rows
        .Arg<FloatVector>()      // gains
        .Arg<IntVector>()        // flaws
        .Arg<xffi::AnyBuffer>()  // table
        .Ret<FloatMatrix>()      // activations
        .Attr<xffi::Span<const double>>("quantization"),
    {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteStepRowsCuda, kRowGroupsOnStream<StepRows>,
                              BindRowGroupsOnStream()
                                  .Arg<FloatVector>()  // gains of cells
                                  .Arg<FloatMatrix>()  // activation_gradient
                                  .RemainingArgs()     // table, slots,
                                                       // hyperparameters, seed
                                  .RemainingRets()     // table, slots, block
                                                       // sums
                                  .Attrs<StepAttributes>(),
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteSumRowsCuda, kRowGroupsOnStream<SumRows>,
                              BindRowGroupsOnStream()
                                  .Arg<FloatVector>()  // gains of cells
                                  .Arg<FloatMatrix>()  // gradient
                                  .Arg<IntVector>()    // requests
                                  .Ret<IntVector>()    // rows
                                  .Ret<FloatMatrix>()  // sums
                                  .Ret<FloatMatrix>()  // block sums
                                  .Attrs<TermsAttributes>(),
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteReadRowsCuda, kOnStream<ReadRows>,
                              BindOnStream()
                                  .Arg<IntVector>()         // rows
                                  .Arg<xffi::AnyBuffer>()   // table
                                  .Ret<xffi::AnyBuffer>(),  // values
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteWriteRowsCuda, kOnStream<WriteRows>,
                              BindOnStream()
                                  .Arg<IntVector>()        // rows
                                  .Arg<xffi::AnyBuffer>()  // values
                                  .RemainingArgs()         // table
                                  .RemainingRets(),        // table
                              {xffi::Traits::kCmdBufferCompatible});

}  // namespace jte::ffi
