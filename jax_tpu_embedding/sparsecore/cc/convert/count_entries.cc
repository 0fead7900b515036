// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/count_entries.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

JTE_VECTOR_CLONES
DistinctCounts CountDistinct(std::span<const uint64_t> elements) {
  if (elements.empty()) return {};
  uint64_t num_ids = 1;  // as wide as what is compared
  uint64_t num_rows = 1;
  for (size_t i = 1; i < elements.size(); ++i) {
    num_ids += elements[i] != elements[i - 1];
    num_rows += (elements[i] ^ elements[i - 1]) >> 32 != 0;
  }
  return {.ids = static_cast<uint32_t>(num_ids),
          .unique_ids = static_cast<uint32_t>(num_rows)};
}

JTE_VECTOR_CLONES
size_t CountLeadingRows(std::span<const uint64_t> elements) {
  size_t i = 1;
  for (; i + kRowsPerBlock <= elements.size(); i += kRowsPerBlock) {
    const uint64_t* const block = elements.data() + i;
    uint32_t repeats = 0;
    // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
    for (size_t j = 0; j < kRowsPerBlock; ++j) {
      repeats |= SortKey::KeyOf(block[j]) == SortKey::KeyOf((block - 1)[j]);
    }
    if (repeats != 0) break;
  }
  return i - 1;
}

}  // namespace jte
