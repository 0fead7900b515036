// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What an update is told of tables and optimizer: operands whose number depends
// on the rule, and attributes.
//
// Operands, in order: table, slots, hyperparameters f32[] or pred[], the
// numbers of the row options f32[], with stochastic rounding u32[2], the seed
// and the device's first shard; then any that only order the call. Results:
// table and slots, each the alias of its operand.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_OPTIMIZER_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_OPTIMIZER_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

struct OptimizerAttributes {
  std::string_view rule;
  int64_t num_hyperparameters;           // those of row options too
  std::span<const float> static_params;  // of the rule, as numbers
  std::string_view row_options;          // their names, separated by commas
  float min_value;
  float max_value;
  bool stochastic_rounding;
  // Used with it only: of all devices, and of this one.
  int64_t rounding_num_shards;
  int64_t rounding_shards_per_device;

  static auto Members() {
    using xla::ffi::StructMember;
    return std::tuple(
        StructMember<std::string_view>("rule"),
        StructMember<int64_t>("num_hyperparameters"),
        StructMember<xla::ffi::Span<const float>>("static_params"),
        StructMember<std::string_view>("row_options"),
        StructMember<float>("min_value"), StructMember<float>("max_value"),
        StructMember<bool>("stochastic_rounding"),
        StructMember<int64_t>("rounding_num_shards"),
        StructMember<int64_t>("rounding_shards_per_device"));
  }
};

struct OptimizerOperands {
  Table table;
  std::vector<std::span<float>> slots;
  std::vector<float> hyperparameters;  // static parameters at their end
  kernels::RowOptions options;
  std::optional<kernels::StochasticRounding> rounding;
  size_t num_operands;  // read; those after them mean something else
};

// What stochastic rounding is told by its operand.
struct RoundingOperand {
  const uint32_t* seed_and_first_shard;  // where the table is
  int64_t rows_per_shard;
};

// Operand number `k`, for a table of `num_rows`; InvalidArgument if it is none.
Result<RoundingOperand> ReadRoundingOperand(
    xla::ffi::RemainingArgs args, size_t k,
    const OptimizerAttributes& attributes, int64_t num_rows);

// Where the operands and results of one of several stacks are.
struct OptimizerPlaces {
  int64_t first_arg;
  int64_t first_ret;
  int64_t num_tables;  // and slots
};

// InvalidArgument or FailedPrecondition, naming the operand, unless numbers,
// types and shapes fit the attributes, and results are aliases of operands.
Result<OptimizerOperands> ReadOptimizerOperands(
    xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets,
    const OptimizerAttributes& attributes, const OptimizerPlaces& places);

// The same, of the only stack.
Result<OptimizerOperands> ReadOptimizerOperands(
    xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets,
    const OptimizerAttributes& attributes);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_OPTIMIZER_OPERANDS_H_
