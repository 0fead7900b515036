// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How many alike tables one stack may hold.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PACK_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/planner/plan.h"

namespace jte::planner {

// What an item takes of a bin, or what a bin offers.
struct Load {
  int64_t activation_bytes = 0;
  int64_t rows = 0;
};

// First fit: puts each item, in order, into the first bin that has room for it,
// and into a new bin if none has. An item larger than a bin is alone in its
// own. Returns the items of every bin, by index. O(items * log(items)), unless
// many bins are full of one resource and empty of the other.
//
//   FirstFit({{256, 0}, {512, 0}, {256, 0}}, {.activation_bytes = 768})
//       == {{0, 1}, {2}}
//
// Requires no load or capacity to be negative.
std::vector<std::vector<size_t>> FirstFit(std::span<const Load> items,
                                          const Load& capacity);

// What each table adds to its stack. Activation bytes are those of the float32
// activations of all its features on one SparseCore; INT64_MAX if there are
// more.
std::vector<Load> TableLoads(const Model& model);

}  // namespace jte::planner

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_PLANNER_PACK_H_
