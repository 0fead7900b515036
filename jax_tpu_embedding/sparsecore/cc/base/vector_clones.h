// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Compiles a function for several instruction sets; when the library is loaded,
// the best that the machine has is picked. The bits of the results do not
// depend on it, because the build forbids fused multiply-add (.bazelrc).
//
// What it buys over x86-64 alone, two runs on a shared Xeon with AVX-512, one
// thread, CPU time, 1 M x 64 float32:
//
//   ids                      lookup        SGD           Adagrad
//   16384 x 1, uniform       1.2, 1.2      1.7, 1.7      1.7, 1.8
//   16384 x 20, uniform      1.4, 1.2      1.3, 1.5      1.3, 1.3
//   16384 x 20, Zipf 1.05    1.6, 1.4      1.2, 1.4      1.2, 1.5
//
// AVX-512 over AVX2 alone: 0.9 to 1.4, most where a batch is small.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_

// Not with TSan: the code that picks runs before TSan is ready, and crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#if defined(__SANITIZE_ADDRESS__)
// GCC 12 puts what AVX-512 needs at multiples of 64 elsewhere on the stack that
// ASan makes (GCC bug 110027).
#define JTE_VECTOR_CLONES [[gnu::target_clones("avx2", "default")]]
#else
#define JTE_VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
#else
#define JTE_VECTOR_CLONES
#endif

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_VECTOR_CLONES_H_
