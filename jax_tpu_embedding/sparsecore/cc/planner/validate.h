// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a plan requires of its input. Everything else in the planner may assume
// that these checks passed.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_VALIDATE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_VALIDATE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

// Counts and sizes are positive and small enough, names are unique and features
// name tables that exist.
Result<void> ValidateModel(const Model& model);

// The tables that are in a stack, by its name. Views into the model.
using StackedTables =
    std::unordered_map<std::string_view, std::vector<TableIndex>>;
StackedTables FindStackedTables(const Model& model);

// `tables` may become the stack `stack_name`: none is in another stack, none is
// listed twice, no other stack has the name, and they agree on optimizer,
// combiner and quantization.
Result<void> ValidateGroup(const Model& model, const StackedTables& stacked,
                           std::span<const TableIndex> tables,
                           std::string_view stack_name);

// `stack_name` will not be the name of another stack as soon as all tables are
// stacked. For names that the user chose: those made of names of tables may be
// that of a table too, if it is in a larger stack.
Result<void> ValidateStackName(const Model& model,
                               std::span<const TableIndex> tables,
                               std::string_view stack_name);

// The rows of each stack can be numbered in int32, the samples of a device in
// 26 bits, and names are unique.
Result<void> ValidateStacks(const Model& model, std::span<const Stack> stacks);

// The quantization as messages show it.
std::string Describe(const std::optional<Quantization>& quantization);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_VALIDATE_H_
