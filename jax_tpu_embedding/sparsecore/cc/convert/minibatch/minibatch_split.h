// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How buckets become minibatches.
//
// Neighbouring buckets join in a binary tree as long as both counts of every
// partition stay within the limits. A tree node over the buckets
// [i, i + size) owns the boundary before bucket i + size / 2; nodes are
// numbered by size, then from left to right:
//
//   bucket     0   1   2   3   4   5   6   7        (of 64)
//   bit          0  32   1  48   2  33   3
//
// A set bit is a boundary that stays. Bits of partitions, SparseCores, stacks
// and hosts are ORed, so all of them get the same minibatches.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_SPLIT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_SPLIT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {

// The boundaries that one partition's counts need.
uint64_t SplitBits(std::array<int64_t, kMaxMinibatches> counts, int64_t limit);

// Those of both counts of all partitions of a table of kMaxMinibatches buckets.
uint64_t SplitBits(const PartitionTable& table, const PartitionLimits& limits);

// Minibatch m has the buckets [begin(m), end(m)).
class MinibatchSplit {
 public:
  // Splits one bucket into one minibatch.
  MinibatchSplit() : ends_{1} {}

  // Splits kMaxMinibatches buckets.
  explicit MinibatchSplit(uint64_t split_bits);

  int64_t size() const { return std::ssize(ends_); }
  int64_t begin(int64_t minibatch) const {
    return minibatch == 0 ? 0 : ends_[minibatch - 1];
  }
  int64_t end(int64_t minibatch) const { return ends_[minibatch]; }

 private:
  std::vector<int64_t> ends_;
};

// The buckets of each minibatch as one, which has the sums of their counts.
PartitionTable JoinBuckets(const PartitionTable& table,
                           const MinibatchSplit& split);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_MINIBATCH_SPLIT_H_
