// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans which tables share a stack, and where each of them goes in it.
//
// Plans depend on their arguments only, so all hosts of a job make the same
// one. A model is validated first; on an error there is no plan at all. Nothing
// compares all pairs of tables, of which there may be a million.
//
//   Model model{.topology = {.global_device_count = 2, .num_sc_per_device = 4},
//               .tables = {{.name = "a", .vocabulary_size = 33, ...}, ...},
//               .features = {{.name = "f", .table = 0, .num_samples = 16},
//               ..}};
//   Result<Plan> plan = PlanAutoStack(model, {});
//
// What needs Python is left to it: shortening long stack names (a hash), limits
// (functions of the user).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLANNER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

struct AutoStackOptions {
  int64_t activation_mem_bytes_limit = 2 * 1024 * 1024;
  // Shards by which each table is rotated against the one before it. Default:
  // num_sc_per_device, so that the first rows of tables are on other devices.
  std::optional<int64_t> rotation = std::nullopt;
};

// Stacks every table. Tables share a stack if they have the same padded width,
// optimizer, combiner and quantization, while their activations stay below the
// limit and their rows can be numbered (first fit, in the order of the model).
// A stack is called after its tables, joined by '_'.
//
// Tables that were stacked alone before are stacked anew; a table that is in a
// stack with others is an error.
Result<Plan> PlanAutoStack(const Model& model, const AutoStackOptions& options);

struct StackTablesOptions {
  std::vector<std::string> table_names;
  std::string stack_name;
  std::optional<int64_t> rotation;  // as in AutoStackOptions
  bool fail_on_excess_padding = false;
};

// Stacks the named tables, in this order. Narrow ones are padded to the width
// of the widest, with a warning or an error. Leaves other tables out of the
// plan.
Result<Plan> PlanStackTables(const Model& model,
                             const StackTablesOptions& options);

// Gives every table that is not stacked a stack of its own, under its name,
// with its features in the order of their names. Leaves others out of the plan.
Result<Plan> PlanStackAlone(const Model& model);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PLANNER_H_
