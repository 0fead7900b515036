// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"

namespace jte::convert {
namespace {

JTE_VECTOR_CLONES
uint32_t Largest(std::span<const uint32_t> stack_rows) {
  uint32_t largest = 0;
  for (const uint32_t stack_row : stack_rows)
    largest = std::max(largest, stack_row);
  return largest;
}

}  // namespace

BucketTable& BucketTable::OfProcess() {
  // Never destroyed: a thread may convert while the process exits.
  static BucketTable& table = *new BucketTable();
  return table;
}

void BucketTable::Find(std::span<const uint32_t> stack_rows,
                       std::span<uint8_t> buckets) {
  if (Largest(stack_rows) >= kNumStackRows)
    return FindBuckets(stack_rows, buckets);
  if (const uint8_t* const known = buckets_.load(std::memory_order_acquire)) {
    for (size_t i = 0; i < stack_rows.size(); ++i)
      buckets[i] = known[stack_rows[i]];
    return;
  }
  FindBuckets(stack_rows, buckets);
  const auto size = static_cast<int64_t>(stack_rows.size());
  const int64_t before = num_hashed_.fetch_add(size, std::memory_order_relaxed);
  // True for one thread, once. If it does not get there, because the process
  // forks, there is no table.
  if (before < kNumStackRows && before + size >= kNumStackRows) Make();
}

void BucketTable::Make() {
  try {
    auto buckets = std::make_unique_for_overwrite<uint8_t[]>(kNumStackRows);
    std::vector<uint32_t> stack_rows(4096);
    for (uint32_t first = 0; first < kNumStackRows;
         first += stack_rows.size()) {
      std::iota(stack_rows.begin(), stack_rows.end(), first);
      FindBuckets(stack_rows,
                  std::span(buckets.get() + first, stack_rows.size()));
    }
    buckets_.store(buckets.release(), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // It is not needed.
  }
}

}  // namespace jte::convert
