// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sorts the ids of several samples together, one sample in each lane of
// vectors, by a network of minima and maxima (Batcher's merge exchange; Knuth,
// The Art of Computer Programming 3, algorithm 5.2.2M).
//
// Number i of lane k is values[i * kLanes + k]; lanes with fewer numbers than
// others end with numbers that are larger than all.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SORT_LANES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SORT_LANES_H_

#include <cstdint>

namespace jte::kernels {

// Samples that are sorted together.
inline constexpr int64_t kLanes = 16;

// Sorts the n numbers of every lane.
void SortLanes(uint32_t* values, int64_t n);
void SortLanes(int64_t* values, int64_t n);

// repeats[k] != 0 if lane k has a number twice, of n sorted ones.
void FindRepeats(const uint32_t* values, int64_t n, uint32_t* repeats);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SORT_LANES_H_
