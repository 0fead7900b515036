// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Counts the entries and the distinct rows of sorted elements, by vector
// instructions.
//
// CPU time per element, Xeon with AVX-512: 0.3 ns where payloads are samples;
// otherwise 0.3 ns where hardly any row repeats, 1.1 where many do.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COUNT_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COUNT_ENTRIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

struct DistinctCounts {
  uint32_t ids = 0;         // entries
  uint32_t unique_ids = 0;  // distinct rows
};

// Of elements whose payloads are samples: an entry is a distinct element.
DistinctCounts CountDistinct(std::span<const uint64_t> elements);

// How many leading elements of elements[1..] begin a row each, in whole blocks
// of kRowsPerBlock.
inline constexpr size_t kRowsPerBlock = 16;
size_t CountLeadingRows(std::span<const uint64_t> elements);

template <typename Gains>
DistinctCounts CountDistinct(std::span<const uint64_t> elements,
                             const Gains& gains) {
  if constexpr (Gains::kPayloadIsSample) {
    return CountDistinct(elements);
  } else {
    if (elements.empty()) return {};
    const auto sample = [elements, &gains](size_t i) {
      return gains[SortKey::PayloadOf(elements[i])].sample;
    };
    DistinctCounts counts = {.ids = 1, .unique_ids = 1};
    for (size_t i = 1; i < elements.size();) {
      const size_t num_rows = CountLeadingRows(elements.subspan(i - 1));
      counts.ids += num_rows;
      counts.unique_ids += num_rows;
      i += num_rows;
      const size_t end = std::min(elements.size(), i + kRowsPerBlock);
      for (; i < end; ++i) {
        const bool new_row =
            SortKey::KeyOf(elements[i]) != SortKey::KeyOf(elements[i - 1]);
        counts.unique_ids += new_row;
        counts.ids += new_row | (sample(i) != sample(i - 1));
      }
    }
    return counts;
  }
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COUNT_ENTRIES_H_
