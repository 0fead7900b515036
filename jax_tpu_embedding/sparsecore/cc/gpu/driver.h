// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What this machine's driver and GPUs are for.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_DRIVER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_DRIVER_H_

namespace jte::gpu {

// The newest CUDA that the driver has, as 13000 for 13.0, or 0 where there is
// no driver. Uses no GPU. Kernels run from kOldestDriver on.
int DriverVersion();

inline constexpr int kOldestDriver = 13000;

// The compute capability of the oldest of the visible GPUs, as 80 for 8.0, or 0
// where there are none. Kernels run from OldestGpuOfKernels() on.
int OldestGpu();
int OldestGpuOfKernels();

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_DRIVER_H_
