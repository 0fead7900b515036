// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Every XLA handler for GPUs. registry_gpu.cc lists them under the names of
// their targets.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_HANDLERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

XLA_FFI_DECLARE_HANDLER_SYMBOL(JteConvertIdsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteGroupByRowCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteGroupBySampleCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteGroupKnownBySampleCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteGroupRowsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JtePackMessagesCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JtePoolSamplesCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteReadRowsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteStepRowsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteSumRowsCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteWriteRowsCuda);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_HANDLERS_H_
