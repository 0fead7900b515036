// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A few neighbouring values, read and written by one instruction.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_VECTOR_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_VECTOR_H_

#include <bit>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T v[kSize];
};

// Requires: `from` and `to` are multiples of the vector's size.
template <int kSize, typename T>
JTE_DEVICE Vector<T, kSize> Load(const T* from) {
  return *reinterpret_cast<const Vector<T, kSize>*>(from);
}

template <int kSize, typename T>
JTE_DEVICE void Store(T* to, const Vector<T, kSize>& values) {
#ifdef __CUDA_ARCH__
  // The compiler would write some of a wide row's vectors number by number.
  if constexpr (sizeof(values) == 16) {
    __stwb(reinterpret_cast<int4*>(to), std::bit_cast<int4>(values));
    return;
  } else if constexpr (sizeof(values) == 8) {
    __stwb(reinterpret_cast<int2*>(to), std::bit_cast<int2>(values));
    return;
  }
#endif
  *reinterpret_cast<Vector<T, kSize>*>(to) = values;
}

// Of what no thread of the kernel writes: by the path for such data.
template <int kSize, typename T>
JTE_DEVICE Vector<T, kSize> LoadConstant(const T* from) {
#ifdef __CUDA_ARCH__
  union Bits {
    JTE_DEVICE Bits() {}
    Vector<T, kSize> values;
    int4 of_16;
    int2 of_8;
  } bits;
  if constexpr (sizeof(bits.values) == 16) {
    bits.of_16 = __ldg(reinterpret_cast<const int4*>(from));
    return bits.values;
  } else if constexpr (sizeof(bits.values) == 8) {
    bits.of_8 = __ldg(reinterpret_cast<const int2*>(from));
    return bits.values;
  }
#endif
  return Load<kSize>(from);
}

// Asks for the line of the cache in which this is, which will be read soon. It
// may be of no array: then nothing happens.
JTE_DEVICE void Prefetch([[maybe_unused]] const void* at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// How a row is split over a tile: `lanes` threads, a power of two up to 32,
// take kSize columns in turn until the row ends.
template <int kSize>
constexpr int LanesOfRow(int64_t dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * kSize < dim) lanes *= 2;
  return lanes;
}

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_VECTOR_H_
