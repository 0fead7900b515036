// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Handlers of XLA from functions of our own.
//
//   Result<void> Lookup(Executor& executor, const IntVector& row_pointers,
//   ...);
//
//   XLA_FFI_DEFINE_HANDLER_SYMBOL(JteLookupCpu, kOnPool<Lookup>,
//                                 xla::ffi::Ffi::Bind()
//                                     .Ctx<xla::ffi::ThreadPool>()
//                                     .Arg<IntVector>()  // row_pointers
//                                     ...);
//
// The function gets operands, results and attributes in the order of Bind. A
// struct of attributes, .Attrs<T>(), names its fields in their order:
//
//   static auto Members() {
//     return std::tuple(xla::ffi::StructMember<int64_t>("num_devices"), ...);
//   }
//
// What it returns becomes the error of the handler: in Python a
// jax.errors.JaxRuntimeError with the code's name and the message; or a
// ValueError, if an invalid argument is found while the caller is still
// dispatching. Running out of memory, in whichever task, is an error too;
// nothing else throws.
//
// The handler's thread takes part in the work, so there is nothing left to wait
// for when it returns, and it returns an error rather than a future.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RUN_HANDLER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RUN_HANDLER_H_

#include <optional>
#include <span>
#include <tuple>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

inline xla::ffi::ErrorCode ToFfiErrorCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return xla::ffi::ErrorCode::kInvalidArgument;
    case ErrorCode::kFailedPrecondition:
      return xla::ffi::ErrorCode::kFailedPrecondition;
    case ErrorCode::kNotFound:
      return xla::ffi::ErrorCode::kNotFound;
    case ErrorCode::kResourceExhausted:
      return xla::ffi::ErrorCode::kResourceExhausted;
  }
  return xla::ffi::ErrorCode::kInternal;
}

// What a function gets for what XLA decodes: a result is a buffer like others.
template <typename T>
const T& ToParameter(const T& decoded) {
  return decoded;
}
template <typename T>
T ToParameter(xla::ffi::Result<T> result) {
  return *result;
}
template <typename T>
std::span<const T> ToParameter(xla::ffi::Span<const T> numbers) {
  return {numbers.begin(), numbers.size()};
}

// What a handler returns for body(args...), a Result<void>.
template <typename Body, typename... Args>
xla::ffi::Error RunHandler(Body body, Args&&... args) {
  const Result<void> result =
      CatchOutOfMemory([&body, &args...] { return body(args...); });
  if (result) return xla::ffi::Error::Success();
  return xla::ffi::Error(ToFfiErrorCode(result.error().code),
                         result.error().message);
}

// The handler that calls kBody.
template <auto kBody>
inline constexpr auto kHandler = [](auto... decoded) {
  return [](const auto&... parameters) {
    return RunHandler(kBody, parameters...);
  }(ToParameter(decoded)...);
};

// The handler that calls kBody with an Executor on XLA's thread pool first.
template <auto kBody>
inline constexpr auto kOnPool = [](xla::ffi::ThreadPool pool, auto... decoded) {
  ThreadPoolExecutor executor(pool);
  return [&executor](const auto&... parameters) {
    return RunHandler(kBody, executor, parameters...);
  }(ToParameter(decoded)...);
};

}  // namespace jte::ffi

// As XLA_FFI_REGISTER_STRUCT_ATTR_DECODING, for which no list of members can be
// a part of another.
template <typename T>
  requires requires { T::Members(); }
struct xla::ffi::AttrDecoding<T> {
  using Type = T;
  static std::optional<T> Decode(XLA_FFI_AttrType, void* attributes,
                                 DiagnosticEngine& diagnostic) {
    const auto decode = [attributes, &diagnostic](auto... members) {
      using Decoder = decltype(internal::DictionaryDecoder<T>(members...));
      return Decoder::Decode(static_cast<const XLA_FFI_Attrs*>(attributes),
                             internal::StructMemberNames(members...),
                             diagnostic);
    };
    return std::apply(decode, T::Members());
  }
};

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_RUN_HANDLER_H_
