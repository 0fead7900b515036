// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// NumPy arrays as descriptions that code without the interpreter lock can read.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/convert/raw_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte {

inline bool IsNumpyArray(pybind11::handle object) {
  return pybind11::detail::npy_api::get().PyArray_Check_(object.ptr());
}

// Without a reference of its own.
inline const pybind11::detail::PyArray_Proxy& Fields(pybind11::handle array) {
  return *pybind11::detail::array_proxy(array.ptr());
}

// None for types that are not in DType: bool, complex, object, long double...
std::optional<ElementType> ElementTypeOf(const pybind11::dtype& dtype);

// The array's elements, of type `type`, which may be another reading of their
// bytes. The array has one or two dimensions.
StridedArray Describe(pybind11::handle array, ElementType type);

std::string ShapeOf(const pybind11::array& array);
std::string DtypeOf(const pybind11::array& array);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_
