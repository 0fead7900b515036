// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/optimizer_operands.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

// Table or slot k: a result which is the alias of an operand.
Result<xffi::AnyBuffer> ReadAlias(xffi::RemainingArgs args,
                                  xffi::RemainingRets rets,
                                  const OptimizerPlaces& places, int64_t k,
                                  std::string_view name) {
  const auto arg = args.get<xffi::AnyBuffer>(places.first_arg + k);
  auto ret = rets.get<xffi::AnyBuffer>(places.first_ret + k);
  if (arg.has_error() || ret.has_error()) {
    return InvalidArgument(name, " is no buffer.");
  }
  if (arg->untyped_data() != (*ret)->untyped_data()) {
    return FailedPrecondition(name, " and its update are different buffers.",
                              " Alias them in the custom call.");
  }
  return *arg;
}

Result<void> ReadTables(xffi::RemainingArgs args, xffi::RemainingRets rets,
                        const OptimizerPlaces& places,
                        OptimizerOperands& operands) {
  const int64_t num_args = std::ssize(args) - places.first_arg;
  if (places.num_tables < 1 || num_args < places.num_tables) {
    return InvalidArgument("Got ", num_args, " operands for ",
                           places.num_tables,
                           " tables, expected as many or more.");
  }
  JTE_ASSIGN_OR_RETURN(const auto table_buffer,
                       ReadAlias(args, rets, places, 0, "The table"));
  JTE_ASSIGN_OR_RETURN(operands.table, ToTable(table_buffer));
  for (int64_t k = 1; k < places.num_tables; ++k) {
    const std::string name = StrCat("Slot ", k - 1);
    JTE_ASSIGN_OR_RETURN(const auto buffer,
                         ReadAlias(args, rets, places, k, name));
    JTE_ASSIGN_OR_RETURN(const auto slot, ToMatrix(buffer, name));
    operands.slots.push_back(slot.values);
  }
  return {};
}

Result<std::vector<float>> ReadNumbers(xffi::RemainingArgs args,
                                       const OptimizerPlaces& places,
                                       int64_t count) {
  const int64_t num_args = std::ssize(args) - places.first_arg;
  if (count < 0 || num_args < places.num_tables + count) {
    return InvalidArgument("Got ", num_args, " operands for ",
                           places.num_tables, " tables and ", count,
                           " hyperparameters.");
  }
  const int64_t first = places.first_arg + places.num_tables;
  std::vector<float> values;
  for (int64_t k = 0; k < count; ++k) {
    const auto arg = args.get<xffi::AnyBuffer>(first + k);
    if (arg.has_value() && arg->element_count() == 1) {
      if (arg->element_type() == xffi::F32) {
        values.push_back(*arg->typed_data<float>());
        continue;
      }
      if (arg->element_type() == xffi::PRED) {
        values.push_back(*arg->typed_data<bool>() ? 1.0f : 0.0f);
        continue;
      }
    }
    return InvalidArgument("Hyperparameter ", k,
                           " must be one float32 number or one bool.");
  }
  return values;
}

// Moves the numbers of the row options from the end of `hyperparameters`.
Result<kernels::RowOptions> TakeRowOptions(
    const OptimizerAttributes& attributes,
    std::vector<float>& hyperparameters) {
  kernels::RowOptions options{.min_value = attributes.min_value,
                              .max_value = attributes.max_value};
  std::vector<std::optional<float>*> values;  // of those that have a number
  for (const auto part : std::views::split(attributes.row_options, ',')) {
    const std::string_view name(part.begin(), part.end());
    if (name == "skip_non_finite_gradients") {
      options.skip_non_finite_gradients = true;
    } else if (name == "max_gradient_norm") {
      values.push_back(&options.max_gradient_norm);
    } else if (name == "l2_weight_decay") {
      values.push_back(&options.l2_weight_decay);
    } else if (name == "decoupled_weight_decay") {
      values.push_back(&options.decoupled_weight_decay);
    } else {
      return InvalidArgument("There is no row option '", name,
                             "'; choose skip_non_finite_gradients, "
                             "max_gradient_norm, l2_weight_decay or "
                             "decoupled_weight_decay.");
    }
  }
  if (hyperparameters.size() < values.size()) {
    return InvalidArgument("Got ", hyperparameters.size(),
                           " hyperparameters, expected ", values.size(),
                           " or more with the row options '",
                           attributes.row_options, "'.");
  }
  const size_t first = hyperparameters.size() - values.size();
  for (size_t k = 0; k < values.size(); ++k) {
    *values[k] = hyperparameters[first + k];
  }
  hyperparameters.resize(first);
  return options;
}

}  // namespace

Result<RoundingOperand> ReadRoundingOperand(
    xffi::RemainingArgs args, size_t k, const OptimizerAttributes& attributes,
    int64_t num_rows) {
  const auto arg = args.get<xffi::AnyBuffer>(k);
  if (arg.has_error() || arg->element_type() != xffi::U32 ||
      arg->element_count() != 2) {
    return InvalidArgument(
        "Stochastic rounding takes uint32[2], a seed and a first shard, after "
        "the hyperparameters.");
  }
  const int64_t num_shards = attributes.rounding_shards_per_device;
  if (num_shards < 1 || num_rows % num_shards != 0) {
    return InvalidArgument("rounding_shards_per_device is ", num_shards,
                           ", expected a divisor of the table's ", num_rows,
                           " rows.");
  }
  return RoundingOperand{.seed_and_first_shard = arg->typed_data<uint32_t>(),
                         .rows_per_shard = num_rows / num_shards};
}

Result<OptimizerOperands> ReadOptimizerOperands(
    xffi::RemainingArgs args, xffi::RemainingRets rets,
    const OptimizerAttributes& attributes, const OptimizerPlaces& places) {
  OptimizerOperands operands{};
  JTE_RETURN_IF_ERROR(ReadTables(args, rets, places, operands));
  JTE_ASSIGN_OR_RETURN(
      auto hyperparameters,
      ReadNumbers(args, places, attributes.num_hyperparameters));
  const int64_t num_numbers =
      places.num_tables + attributes.num_hyperparameters;
  JTE_ASSIGN_OR_RETURN(const auto options,
                       TakeRowOptions(attributes, hyperparameters));
  hyperparameters.insert(hyperparameters.end(),
                         attributes.static_params.begin(),
                         attributes.static_params.end());
  operands.hyperparameters = std::move(hyperparameters);
  operands.options = options;
  if (attributes.stochastic_rounding) {
    JTE_ASSIGN_OR_RETURN(
        const auto rounding,
        ReadRoundingOperand(args, places.first_arg + num_numbers, attributes,
                            operands.table.num_rows));
    operands.rounding = {.seed = rounding.seed_and_first_shard[0],
                         .num_shards = attributes.rounding_num_shards,
                         .first_shard = rounding.seed_and_first_shard[1],
                         .rows_per_shard = rounding.rows_per_shard};
  }
  operands.num_operands =
      num_numbers + (attributes.stochastic_rounding ? 1 : 0);
  return operands;
}

Result<OptimizerOperands> ReadOptimizerOperands(
    xffi::RemainingArgs args, xffi::RemainingRets rets,
    const OptimizerAttributes& attributes) {
  return ReadOptimizerOperands(
      args, rets, attributes,
      {.first_arg = 0, .first_ret = 0, .num_tables = std::ssize(rets)});
}

}  // namespace jte::ffi
