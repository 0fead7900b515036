// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Numbers that the buffer format fixes. Python: lib/core/constants.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CONSTANTS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CONSTANTS_H_

#include <cstdint>
#include <limits>

namespace jte {

// Embedding id and sample id of a cell that holds no entry. The gain of such a
// cell is a quiet NaN, so that code which reads one by mistake shows it.
inline constexpr int32_t kPaddingId = std::numeric_limits<int32_t>::max();
inline constexpr float kPaddingGain = std::numeric_limits<float>::quiet_NaN();

// Every partition starts at a multiple of this many cells. Vocabulary per shard
// and embedding dimension are padded to multiples of it too.
inline constexpr int64_t kAlignment = 8;

// A block of row pointers has at least this many entries.
inline constexpr int64_t kMinRowPointersPerBlock = 8;

// Samples of one device in a batch of a stack: the cells of the hardware have
// 26 bits for the sample.
inline constexpr int64_t kMaxSamplesPerDevice = (int64_t{1} << 26) - 1;

// Buckets that minibatching splits the stack rows of a step into, and so the
// largest number of minibatches.
inline constexpr int64_t kMaxMinibatches = 64;

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_LAYOUT_CONSTANTS_H_
