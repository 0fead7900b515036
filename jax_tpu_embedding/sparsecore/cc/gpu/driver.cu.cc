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

}  // namespace jte::gpu
