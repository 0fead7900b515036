// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Every XLA handler for the CPU. registry_cpu.cc lists them under the names of
// their targets; the file <op>_ffi.cc defines each and names its arguments.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_HANDLERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

XLA_FFI_DECLARE_HANDLER_SYMBOL(JteCheckBatchCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteCheckSealCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteConvertIdsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteHoldCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteSplitRecordsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteLookupCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteLookupFetchedCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteLookupIdsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteLookupIdsOfDevicesCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteLookupPartCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteNewTableCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JtePackMessagesCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JtePublishCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JtePublishTableCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteRandomBitsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteReadRowsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteRowGradientsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteSumGradientsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteSumRowsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteUnstackActivationsCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteUpdateBatchesCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteUpdateCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JteUpdateReceivedCpu);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_HANDLERS_H_
