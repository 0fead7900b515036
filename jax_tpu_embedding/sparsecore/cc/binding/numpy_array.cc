// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/numpy_array.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

static_assert(std::endian::native == std::endian::little);

std::optional<convert::DType> DTypeOf(const py::dtype& dtype) {
  const auto size = dtype.itemsize();
  switch (dtype.kind()) {
    case 'i':
      return size == 1   ? convert::DType::kInt8
             : size == 2 ? convert::DType::kInt16
             : size == 4 ? convert::DType::kInt32
                         : convert::DType::kInt64;
    case 'u':
      return size == 1   ? convert::DType::kUint8
             : size == 2 ? convert::DType::kUint16
             : size == 4 ? convert::DType::kUint32
                         : convert::DType::kUint64;
    case 'f':
      if (size == 2) return convert::DType::kFloat16;
      if (size == 4) return convert::DType::kFloat32;
      if (size == 8) return convert::DType::kFloat64;
      return std::nullopt;
    default:
      // How types that other packages add call themselves.
      if (size == 2 && std::string(py::str(dtype)) == "bfloat16") {
        return convert::DType::kBfloat16;
      }
      return std::nullopt;
  }
}

}  // namespace

std::optional<convert::ElementType> ElementTypeOf(const py::dtype& dtype) {
  const auto known = DTypeOf(dtype);
  if (!known) return std::nullopt;
  return convert::ElementType{.dtype = *known,
                              .byte_swapped = dtype.byteorder() == '>'};
}

convert::StridedArray Describe(py::handle array, convert::ElementType type) {
  const auto& fields = Fields(array);
  convert::StridedArray result = {
      .data = reinterpret_cast<const std::byte*>(fields.data),
      .type = type,
      .shape = {fields.dimensions[0], 1},
      .strides = {fields.strides[0], convert::SizeOf(type.dtype)}};
  if (fields.nd == 2) {
    result.shape[1] = fields.dimensions[1];
    result.strides[1] = fields.strides[1];
  }
  return result;
}

py::object NewArray(int dtype, std::span<const int64_t> shape, void* data,
                    py::handle owner) {
  using Api = py::detail::npy_api;
  static_assert(sizeof(Py_intptr_t) == sizeof(int64_t));
  const auto& api = Api::get();
  // Without data, flags ask for an order that is not C's.
  const int flags = data == nullptr ? 0
                                    : Api::NPY_ARRAY_C_CONTIGUOUS_ |
                                          Api::NPY_ARRAY_ALIGNED_ |
                                          Api::NPY_ARRAY_WRITEABLE_;
  auto array = py::reinterpret_steal<py::object>(api.PyArray_NewFromDescr_(
      api.PyArray_Type_, api.PyArray_DescrFromType_(dtype),
      static_cast<int>(shape.size()),
      reinterpret_cast<const Py_intptr_t*>(shape.data()), /*strides=*/nullptr,
      data, flags, /*obj=*/nullptr));
  if (!array) throw py::error_already_set();
  if (owner &&
      api.PyArray_SetBaseObject_(array.ptr(), owner.inc_ref().ptr()) != 0) {
    throw py::error_already_set();
  }
  return array;
}

std::string ShapeOf(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

std::string DtypeOf(const py::array& array) {
  return py::str(array.dtype()).cast<std::string>();
}

}  // namespace jte::binding
