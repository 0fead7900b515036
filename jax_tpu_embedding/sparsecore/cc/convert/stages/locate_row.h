// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The row of an id, without the offset of its table, and its partition: equal
// to IdTransform::StackRow, taken apart. A rotation moves the partition and not
// the row.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_LOCATE_ROW_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_LOCATE_ROW_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"

namespace jte::convert {

struct RowAndPartition {
  uint32_t row;
  uint32_t partition;
};

struct AnyNumberOfScs {
  Divisor divisor;
  uint32_t num_scs;
  uint32_t rotation;  // below num_scs

  [[gnu::always_inline]] RowAndPartition operator()(uint32_t id) const {
    const uint32_t row = divisor.Quotient(id);
    const uint32_t rotated = id - row * num_scs + rotation;
    // If it is too small for the subtraction, that gives a large number.
    return {row, std::min(rotated, rotated - num_scs)};
  }
};

// The same for the usual ones, in half the time.
struct PowerOfTwoScs {
  uint32_t mask;
  int shift;
  uint32_t rotation;

  [[gnu::always_inline]] RowAndPartition operator()(uint32_t id) const {
    return {id >> shift, (id + rotation) & mask};
  }
};

// The key of an id in the stack.
template <typename Locator>
struct IdToKey {
  Locator locate;
  SortKey sort_key;
  uint32_t first_row;

  [[gnu::always_inline]] uint32_t operator()(uint32_t id) const {
    const auto [row, partition] = locate(id);
    return sort_key.Key(partition, row + first_row);
  }
};

// function(IdToKey) for the ids of a feature.
template <typename Function>
auto WithIdToKey(const StackPlan& plan, const FeaturePlan& feature,
                 const Function& function) {
  const auto num_scs = static_cast<uint32_t>(plan.topology.num_scs());
  if (std::has_single_bit(num_scs)) {
    return function(
        IdToKey<PowerOfTwoScs>{.locate = {.mask = num_scs - 1,
                                          .shift = std::countr_zero(num_scs),
                                          .rotation = feature.rotation},
                               .sort_key = plan.sort_key,
                               .first_row = feature.first_row});
  }
  return function(
      IdToKey<AnyNumberOfScs>{.locate = {.divisor = plan.num_scs,
                                         .num_scs = num_scs,
                                         .rotation = feature.rotation},
                              .sort_key = plan.sort_key,
                              .first_row = feature.first_row});
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_STAGES_LOCATE_ROW_H_
