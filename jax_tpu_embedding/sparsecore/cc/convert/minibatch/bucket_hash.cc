// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/bucket_hash_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/highway_state.h"

namespace jte::convert {
namespace {

#if defined(__x86_64__)

using FindBucketsOfBlocks = void(std::span<const uint32_t> stack_rows,
                                 std::span<uint8_t> buckets);

// All stack rows, by a function for blocks of kBlock of them.
template <size_t kBlock>
void FindBucketsInBlocks(std::span<const uint32_t> stack_rows,
                         std::span<uint8_t> buckets,
                         FindBucketsOfBlocks& find_buckets) {
  const size_t size_of_blocks = stack_rows.size() / kBlock * kBlock;
  find_buckets(stack_rows.first(size_of_blocks), buckets.first(size_of_blocks));
  if (size_of_blocks == stack_rows.size()) return;
  std::array<uint32_t, kBlock> last_stack_rows = {};
  std::array<uint8_t, kBlock> last_buckets;
  std::ranges::copy(stack_rows.subspan(size_of_blocks),
                    last_stack_rows.begin());
  find_buckets(last_stack_rows, last_buckets);
  std::copy_n(last_buckets.begin(), stack_rows.size() - size_of_blocks,
              buckets.begin() + size_of_blocks);
}

#endif  // defined(__x86_64__)

}  // namespace

uint64_t HashStackRow(uint32_t stack_row) {
  HighwayState state = kHighwayStart;
  state.Update({stack_row, 0, 0, 0});
  for (int round = 0; round < kHighwayFinalRounds; ++round) {
    state.FinalUpdate();
  }
  return state.v0[0] + state.v1[0] + state.mul0[0] + state.mul1[0];
}

void FindBuckets(std::span<const uint32_t> stack_rows,
                 std::span<uint8_t> buckets) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw")) {
    FindBucketsInBlocks<kStackRowsWithAvx512>(stack_rows, buckets,
                                              FindBucketsWithAvx512);
    return;
  }
  if (__builtin_cpu_supports("avx2")) {
    FindBucketsInBlocks<kStackRowsWithAvx2>(stack_rows, buckets,
                                            FindBucketsWithAvx2);
    return;
  }
#endif
  for (size_t i = 0; i < stack_rows.size(); ++i)
    buckets[i] = BucketOf(stack_rows[i]);
}

}  // namespace jte::convert
