// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Which tables are alike enough to be one table.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_GROUP_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_GROUP_H_

#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

// Groups tables of equal padded width, optimizer, combiner and quantization.
// Groups, and the tables in each, are in the order of model.tables.
std::vector<std::vector<TableIndex>> GroupTables(const Model& model);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_GROUP_H_
