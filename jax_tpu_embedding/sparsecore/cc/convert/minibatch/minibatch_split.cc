// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_split.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {
namespace {

// Those of one count. Most partitions fit as a whole, which needs no tree.
uint64_t SplitBitsOf(std::span<const BucketCounts> buckets,
                     uint32_t BucketCounts::* count_of, int64_t limit) {
  std::array<int64_t, kMaxMinibatches> counts;
  int64_t sum = 0;
  for (int64_t i = 0; i < kMaxMinibatches; ++i) {
    counts[i] = buckets[i].*count_of;
    sum += counts[i];
  }
  return sum > limit ? SplitBits(counts, limit) : 0;
}

}  // namespace

uint64_t SplitBits(std::array<int64_t, kMaxMinibatches> counts, int64_t limit) {
  uint64_t bits = 0;
  int bit = 0;
  for (int64_t size = 2; size <= kMaxMinibatches; size *= 2) {
    for (int64_t i = 0; i < kMaxMinibatches; i += size, ++bit) {
      const int64_t left = counts[i];
      const int64_t right = counts[i + size / 2];
      const bool split = left + right > limit;
      bits |= uint64_t{split} << bit;
      // Split nodes stay apart further up, so the larger one decides there.
      counts[i] = split ? std::max(left, right) : left + right;
    }
  }
  return bits;
}

uint64_t SplitBits(const PartitionTable& table, const PartitionLimits& limits) {
  uint64_t bits = 0;
  for (int64_t t = 0; t < table.num_partitions(); ++t) {
    const std::span<const BucketCounts> buckets = table.Buckets(t);
    bits |= SplitBitsOf(buckets, &BucketCounts::num_ids, limits.max_ids) |
            SplitBitsOf(buckets, &BucketCounts::num_unique_ids,
                        limits.max_unique_ids);
  }
  return bits;
}

MinibatchSplit::MinibatchSplit(uint64_t split_bits) {
  int bit = 0;
  for (int64_t size = 2; size <= kMaxMinibatches; size *= 2) {
    for (int64_t i = 0; i < kMaxMinibatches; i += size, ++bit) {
      if ((split_bits >> bit) & 1) ends_.push_back(i + size / 2);
    }
  }
  std::ranges::sort(ends_);
  ends_.push_back(kMaxMinibatches);
}

PartitionTable JoinBuckets(const PartitionTable& table,
                           const MinibatchSplit& split) {
  PartitionTable joined = {.num_buckets = split.size(), .counts = {}};
  joined.counts.reserve(table.num_partitions() * split.size());
  for (int64_t t = 0; t < table.num_partitions(); ++t) {
    const std::span<const BucketCounts> buckets = table.Buckets(t);
    for (int64_t m = 0; m < split.size(); ++m) {
      BucketCounts sum = {.end = buckets[split.end(m) - 1].end};
      for (int64_t b = split.begin(m); b < split.end(m); ++b) {
        sum.num_ids += buckets[b].num_ids;
        sum.num_unique_ids += buckets[b].num_unique_ids;
        sum.num_kept_ids += buckets[b].num_kept_ids;
      }
      joined.counts.push_back(sum);
    }
  }
  return joined;
}

}  // namespace jte::convert
