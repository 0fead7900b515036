// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Marks functions that CUDA kernels call as well as the CPU's.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_HOST_DEVICE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define JTE_HOST_DEVICE __host__ __device__
// Of what is long, rarely called, and would be compiled into every kernel.
#define JTE_NOINLINE_ON_DEVICE __noinline__
#else
#define JTE_HOST_DEVICE
#define JTE_NOINLINE_ON_DEVICE
#endif

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_HOST_DEVICE_H_
