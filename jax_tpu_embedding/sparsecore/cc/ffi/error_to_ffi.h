// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The one place that turns an Error into the error of an XLA handler.
//
//   ffi::Error Handler(...) {
//     return RunHandler(CheckedLookup, table, ...);  // gives a Result<void>
//   }
//
// In Python this is a jax.errors.JaxRuntimeError with the code's name and the
// message; or a ValueError, if an invalid argument is found while the caller is
// still dispatching.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_ERROR_TO_FFI_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_ERROR_TO_FFI_H_

#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "xla/ffi/api/ffi.h"

namespace jte {

inline xla::ffi::ErrorCode ToFfiErrorCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return xla::ffi::ErrorCode::kInvalidArgument;
    case ErrorCode::kFailedPrecondition:
      return xla::ffi::ErrorCode::kFailedPrecondition;
    case ErrorCode::kNotFound:
      return xla::ffi::ErrorCode::kNotFound;
    case ErrorCode::kUnimplemented:
      return xla::ffi::ErrorCode::kUnimplemented;
    case ErrorCode::kResourceExhausted:
      return xla::ffi::ErrorCode::kResourceExhausted;
  }
  return xla::ffi::ErrorCode::kInternal;
}

inline xla::ffi::Error ToFfiError(const Error& error) {
  return xla::ffi::Error(ToFfiErrorCode(error.code), error.message);
}

// What a handler returns for body(args...), a Result<void>. Running out of
// memory, in whichever task, is an error too; nothing else throws.
template <typename Body, typename... Args>
xla::ffi::Error RunHandler(Body body, Args&&... args) {
  const Result<void> result = CatchOutOfMemory(
      [&body, &args...] { return body(std::forward<Args>(args)...); });
  return result ? xla::ffi::Error::Success() : ToFfiError(result.error());
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_ERROR_TO_FFI_H_
