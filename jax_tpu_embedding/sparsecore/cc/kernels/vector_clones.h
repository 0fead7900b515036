// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Compiles a function for several instruction sets; when the library is loaded,
// the best that the machine has is picked. The bits of the results do not
// depend on it, because the build forbids fused multiply-add (.bazelrc).
//
// What it buys over x86-64 alone, 1 M x 64 float32, one core of a Xeon with
// AVX-512, CPU time: lookup of 16384 x 1 ids 1.2x, of 16384 x 20 Zipf ids 1.5x,
// update with Adagrad 1.7x and 1.4x. AVX-512 over AVX2: 1.05x to 1.4x.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_VECTOR_CLONES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_VECTOR_CLONES_H_

// Not with TSan: the code that picks runs before TSan is ready, and crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define JTE_VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define JTE_VECTOR_CLONES
#endif

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_VECTOR_CLONES_H_
