// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// NumPy arrays as descriptions that code without the interpreter lock can read.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

inline bool IsNumpyArray(pybind11::handle object) {
  return pybind11::detail::npy_api::get().PyArray_Check_(object.ptr());
}

// Whether it is one of np.ndarray itself: those of other classes may mean
// something else by their elements.
inline bool IsPlainNumpyArray(pybind11::handle object) {
  return Py_IS_TYPE(object.ptr(),
                    reinterpret_cast<PyTypeObject*>(
                        pybind11::detail::npy_api::get().PyArray_Type_));
}

// Without a reference of its own.
inline const pybind11::detail::PyArray_Proxy& Fields(pybind11::handle array) {
  return *pybind11::detail::array_proxy(array.ptr());
}

// None for types that are not in DType: bool, complex, object, long double...
std::optional<convert::ElementType> ElementTypeOf(const pybind11::dtype& dtype);

// The array's elements, of type `type`, which may be another reading of their
// bytes. The array has one or two dimensions.
convert::StridedArray Describe(pybind11::handle array,
                               convert::ElementType type);

// The same as the function below, with the number of a dtype.
pybind11::object NewArray(int dtype, std::span<const int64_t> shape, void* data,
                          pybind11::handle owner);

// An array over `data`, row by row, which `owner` keeps alive; without data,
// over memory of its own. A call makes seven of them for each stack, and
// pybind11's constructors, which allocate shapes and strides, are a part of a
// small call's time that can be seen.
template <typename T>
pybind11::array_t<T> NewArray(std::initializer_list<int64_t> shape, T* data,
                              pybind11::handle owner) {
  return pybind11::reinterpret_steal<pybind11::array_t<T>>(
      NewArray(pybind11::dtype::num_of<T>(), std::span(shape), data, owner)
          .release());
}

// An array of its own memory with the numbers of a span.
template <typename T>
pybind11::array_t<T> CopyOf(std::span<const T> numbers) {
  auto array = NewArray<T>({std::ssize(numbers)}, nullptr, {});
  std::ranges::copy(numbers, reinterpret_cast<T*>(Fields(array).data));
  return array;
}

std::string ShapeOf(const pybind11::array& array);
std::string DtypeOf(const pybind11::array& array);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_NUMPY_ARRAY_H_
