// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/sorted_ids.h"

#include <cstdint>
#include <expected>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"

namespace jte {

Result<SortedIds> SortIds(const StackPlan& plan, int64_t local_sc,
                          Scratch& scratch) {
  const auto extracted = ExtractIds(plan, local_sc, scratch);
  if (!extracted) return std::unexpected(extracted.error());
  const std::span<uint64_t> elements = extracted->elements;
  const std::span<uint64_t> buffer =
      scratch.sorted_elements.Take(elements.size());
  const std::span<uint64_t> sorted =
      SortElements(elements, buffer, plan.sort_key.num_bits());
  return SortedIds{
      .elements = sorted,
      .spare = sorted.data() == elements.data() ? buffer : elements,
      .gains = extracted->gains,
      .dropped_id_count = extracted->dropped_id_count};
}

}  // namespace jte
