// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// lib.checkpoint.pybind_checked_files: files with checksums (cc/files).

#include <cstddef>
#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/error_to_python.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "jax_tpu_embedding/sparsecore/cc/files/checked_file.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

// Contiguous: NumPy's view as bytes, whatever the type. It is not converted,
// which would read into a copy.
using Bytes = py::array_t<unsigned char, py::array::c_style>;

void WriteChecked(const std::string& path, const Bytes& values,
                  size_t num_bytes) {
  const auto bytes = std::as_bytes(
      std::span(values.data(), static_cast<size_t>(values.size())));
  Result<void> result;
  {
    const ScopedUnlock unlocked;
    result = files::WriteChecked(path, bytes, num_bytes);
  }
  ValueOrThrow(std::move(result));
}

void ReadChecked(const std::string& path, Bytes values, size_t num_bytes) {
  const auto bytes = std::as_writable_bytes(
      std::span(values.mutable_data(), static_cast<size_t>(values.size())));
  Result<void> result;
  {
    const ScopedUnlock unlocked;
    result = files::ReadChecked(path, bytes, num_bytes);
  }
  ValueOrThrow(std::move(result));
}

}  // namespace
}  // namespace jte::binding

PYBIND11_MODULE(pybind_checked_files, m) {
  namespace binding = jte::binding;
  namespace py = pybind11;
  m.doc() = "Files with checksums (cc/files).";
  m.def("write_checked", &binding::WriteChecked, py::arg("path"),
        py::arg("values").noconvert(), py::arg("num_bytes"),
        "Writes bytes, zeros up to num_bytes, and their CRC-32C.");
  m.def("read_checked", &binding::ReadChecked, py::arg("path"),
        py::arg("values").noconvert(), py::arg("num_bytes"),
        "Reads the first of num_bytes, all of which are checked.");
}
