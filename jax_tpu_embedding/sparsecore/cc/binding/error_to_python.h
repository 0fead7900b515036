// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The one place that turns an Error into a Python exception.
//
//   StackPlan plan = ValueOrThrow(PlanStack(...));

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_

#include <expected>
#include <type_traits>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

inline PyObject* PythonExceptionType(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return PyExc_ValueError;
    case ErrorCode::kFailedPrecondition:
      return PyExc_RuntimeError;
    case ErrorCode::kNotFound:
      return PyExc_KeyError;
    case ErrorCode::kResourceExhausted:
      return PyExc_MemoryError;
  }
  return PyExc_SystemError;
}

// Both need the interpreter lock.

[[noreturn]] inline void ThrowPythonError(const std::unexpected<Error>& error) {
  pybind11::set_error(PythonExceptionType(error.error().code),
                      error.error().message.c_str());
  throw pybind11::error_already_set();
}

template <typename T>
T ValueOrThrow(Result<T>&& result) {
  if (!result) ThrowPythonError(std::unexpected(result.error()));
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_
