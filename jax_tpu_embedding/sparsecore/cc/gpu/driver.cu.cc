// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/driver.h"

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

int DriverVersion() {
#ifdef __CUDACC__
  static_assert(CUDART_VERSION / 1000 == kOldestDriver / 1000);
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
#else
  return 0;
#endif
}

int OldestGpu() {
  int oldest = 0;
#ifdef __CUDACC__
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess) return 0;
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    int major = 0;
    int minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
    const int capability = 10 * major + minor;
    if (oldest == 0 || capability < oldest) oldest = capability;
  }
#endif
  return oldest;
}

int OldestGpuOfKernels() {
#ifdef __CUDACC__
  // nvcc's own, in order: 800 for sm_80.
  constexpr int kGpus[] = {__CUDA_ARCH_LIST__};
  return kGpus[0] / 10;
#else
  return 0;
#endif
}

}  // namespace jte::gpu
