// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Handlers of XLA for GPUs, from functions that take a stream first:
//
//   Result<void> Pool(gpu::Stream stream, const IntVector& begins, ...);
//
//   XLA_FFI_DEFINE_HANDLER_SYMBOL(JTE_GPU_HANDLER(Pool), kOnStream<Pool>,
//                                 BindOnStream()
//                                     .Arg<IntVector>()  // begins
//                                     ...,
//                                 {xla::ffi::Traits::kCmdBufferCompatible});
//
// A function starts kernels and does not wait for them. It takes no memory:
// XLA may record the call in a CUDA graph and run that again and again. So all
// that kernels write is a result of the call.
//
// Compiled once more with JTE_EMULATED_GPU, the same handlers run on a CPU
// (gpu/simt_emulation.h), for tests.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_ON_STREAM_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_ON_STREAM_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

#ifdef JTE_EMULATED_GPU

inline auto BindOnStream() { return xla::ffi::Ffi::Bind(); }

template <auto kBody>
inline constexpr auto kOnStream = [](auto... decoded) {
  return [](const auto&... parameters) {
    return RunHandler(kBody, gpu::Stream(), parameters...);
  }(ToParameter(decoded)...);
};

#else

inline auto BindOnStream() {
  return xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<gpu::Stream> >();
}

template <auto kBody>
inline constexpr auto kOnStream = [](gpu::Stream stream, auto... decoded) {
  return [stream](const auto&... parameters) {
    return RunHandler(kBody, stream, parameters...);
  }(ToParameter(decoded)...);
};

#endif

// An error for the message that a launch returns, or none for null.
inline Result<void> ToResult(const char* message) {
  if (message == nullptr) return {};
  return FailedPrecondition("GPU: ", message);
}

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_ON_STREAM_H_
