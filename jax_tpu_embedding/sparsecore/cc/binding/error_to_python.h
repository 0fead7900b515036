// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The one place that turns an Error into a Python exception.
//
//   StackPlan plan = ValueOrThrow(PlanStack(...));

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_

#include <expected>
#include <iterator>
#include <string>
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
  const std::string& message = error.error().message;
  // A path need not be UTF-8: its other bytes become \xff and the like.
  const auto text =
      pybind11::reinterpret_steal<pybind11::object>(PyUnicode_DecodeUTF8(
          message.data(), std::ssize(message), "backslashreplace"));
  if (!text) throw pybind11::error_already_set();
  pybind11::set_error(PythonExceptionType(error.error().code), text);
  throw pybind11::error_already_set();
}

template <typename T>
T ValueOrThrow(Result<T>&& result) {
  if (!result) ThrowPythonError(std::unexpected(result.error()));
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ERROR_TO_PYTHON_H_
