// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What kernels of others do: on a GPU, CUB; where that is emulated, the
// standard library.
//
// Memory for them is the caller's: calls within a CUDA graph may not take any.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SORT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SORT_H_

#include <cstddef>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

struct Scratch {
  void* data;
  size_t num_bytes;
};

// Bytes of scratch that suffice for any function below and up to n elements.
constexpr int64_t ScratchBytes(int64_t n) { return 2 * n + (4 << 20); }

// What is sorted, and room for as many others.
struct ToSort {
  int32_t* values;
  int32_t* others;
};

// Sorts keys and values, equal keys in their order. Keys are from 0 to
// 2^num_bits - 1, or any numbers if num_bits is 32. What is sorted is in either
// of two arrays then: it becomes `values`, and the other one is of no use.
//
// All of these return null, or the message of an error.
const char* SortByKey(Stream stream, int64_t n, int num_bits, ToSort& keys,
                      ToSort& values, Scratch scratch);

// starts: the numbers i from 0 to n at which a run of equal keys begins, and
// where the last one ends. Runs of no_key may only be at the end, and are none.
// count: how many these are. Requires: room for n + 1.
const char* FindRuns(Stream stream, int64_t n, const int32_t* keys,
                     int32_t no_key, int32_t* starts, int32_t* count,
                     Scratch scratch);

// sums[i]: values[0] + ... + values[i].
const char* SumUpTo(Stream stream, int64_t n, const int32_t* values,
                    int32_t* sums, Scratch scratch);

// How many bits numbers from 0 to `largest` have.
constexpr int NumBits(int64_t largest) {
  int bits = 1;
  while (largest >> bits != 0) ++bits;
  return bits;
}

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_SORT_H_
