// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Compiles code for several instruction sets and picks the best that the
// machine has: JTE_VECTOR_CLONES a function with loops, of which the compiler
// makes vectors, when the library is loaded; WithVectorLanes a loop that is
// written with Vector (float_vectors.h), when it is called. The bits of the
// results do not depend on it, because the build forbids fused multiply-add
// (.bazelrc).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_

// Not with TSan: the code that picks clones runs before TSan is ready, and
// crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define JTE_HAS_AVX2_CODE
// GCC 12 puts what AVX-512 needs at multiples of 64 elsewhere on the stack that
// ASan makes (GCC bug 110027).
#ifndef __SANITIZE_ADDRESS__
#define JTE_HAS_AVX512_CODE
#endif
#endif

#if defined(JTE_HAS_AVX512_CODE)
#define JTE_VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#elif defined(JTE_HAS_AVX2_CODE)
#define JTE_VECTOR_CLONES [[gnu::target_clones("avx2", "default")]]
#else
#define JTE_VECTOR_CLONES
#endif

namespace jte {

#ifdef JTE_HAS_AVX512_CODE
template <typename Loop>
__attribute__((target("avx512f,f16c"),
               noinline)) auto WithAvx512(const Loop& loop) {
  return loop.template operator()<16>();
}
#endif

#ifdef JTE_HAS_AVX2_CODE
template <typename Loop>
__attribute__((target("avx2,f16c"), noinline)) auto WithAvx2(const Loop& loop) {
  return loop.template operator()<8>();
}
#endif

// Calls a function with the number of floats that a register has. The function
// and all that it calls with vectors are always inlined:
//
//   WithVectorLanes([x]<int kLanes>() __attribute__((always_inline)) {
//     Double<kLanes>(x);
//   });
//
// GCC 12 keeps a vector that is longer than a register in memory, and makes it
// anew for each operation: with 16 lanes and AVX2, a lookup takes three times
// as long as with 8.
//
// Eight lanes and more come with F16C, which every processor with AVX2 has that
// was ever made.
template <typename Loop>
[[gnu::always_inline]] inline auto WithVectorLanes(const Loop& loop) {
#ifdef JTE_HAS_AVX2_CODE
  if (__builtin_cpu_supports("f16c")) {
#ifdef JTE_HAS_AVX512_CODE
    if (__builtin_cpu_supports("avx512f")) return WithAvx512(loop);
#endif
    if (__builtin_cpu_supports("avx2")) return WithAvx2(loop);
  }
#endif
  return loop.template operator()<4>();
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_
