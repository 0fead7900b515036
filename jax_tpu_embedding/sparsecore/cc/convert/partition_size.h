// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where partitions end among sorted elements.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_SIZE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_SIZE_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {

// How many of the first elements belong to partitions up to `partition`: one by
// one, then in doubling steps, so that short and long partitions cost little.
inline int64_t PartitionSize(std::span<const uint64_t> elements,
                             const SortKey& sort_key, uint32_t partition) {
  const auto belongs = [&sort_key, partition](uint64_t element) {
    return sort_key.PartitionOf(element) <= partition;
  };
  constexpr int64_t kShort = 8;
  const int64_t size = std::ssize(elements);
  int64_t known = 0;  // elements that belong
  while (known < std::min(size, kShort)) {
    if (!belongs(elements[known])) return known;
    ++known;
  }
  int64_t step = kShort;
  while (known + step <= size && belongs(elements[known + step - 1])) {
    known += step;
    step *= 2;
  }
  const auto rest = elements.subspan(known, std::min(step, size - known));
  return known + (std::ranges::partition_point(rest, belongs) - rest.begin());
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_PARTITION_SIZE_H_
