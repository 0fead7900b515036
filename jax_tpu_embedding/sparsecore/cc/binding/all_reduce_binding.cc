// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/binding/all_reduce_binding.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/binding/interpreter_lock.h"
#include "pybind11/pybind11.h"

namespace jte::binding {
namespace {

namespace py = pybind11;

// What Python subclasses. It has no C++ members: its methods are looked up by
// name, as those of any Python object.
struct AllReduceInterface {};

constexpr char kAnyOf[] = "any_of";
constexpr char kBitwiseOr[] = "bitwise_or";

[[noreturn]] void ThrowNotOverridden(py::handle self, const char* method) {
  const std::string message =
      StrCat("Class ", py::type::of(self).attr("__name__").cast<std::string>(),
             " must define ", method, "(self, sync_key, value).");
  py::set_error(PyExc_NotImplementedError, message.c_str());
  throw py::error_already_set();
}

py::object LazyAttribute(const py::module_& module, std::string_view name) {
  if (name == "MinibatchingNode") {
    return py::module_::import(
               "jax_tpu_embedding.sparsecore.lib.core.all_reduce."
               "minibatching_node")
        .attr("MinibatchingNode");
  }
  throw py::attribute_error(StrCat("module '",
                                   module.attr("__name__").cast<std::string>(),
                                   "' has no attribute '", name, "'"));
}

}  // namespace

void RegisterAllReduce(py::module_& module) {
  py::class_<AllReduceInterface>(
      module, "AllReduceInterface",
      "How hosts agree: OR reductions, each named by its sync_key.\n\n"
      "Subclasses define both methods. Each blocks until every host has called "
      "it with the same key, and may be called from any thread.")
      .def(py::init<>())
      .def(
          kAnyOf,
          [](py::handle self, int32_t, bool) -> bool {
            ThrowNotOverridden(self, kAnyOf);
          },
          py::arg("sync_key"), py::arg("value"),
          "Whether `value` is true on any host.")
      .def(
          kBitwiseOr,
          [](py::handle self, int32_t, uint64_t) -> uint64_t {
            ThrowNotOverridden(self, kBitwiseOr);
          },
          py::arg("sync_key"), py::arg("value"),
          "The OR of the 64-bit `value` of every host.");

  // A function of this name is called for attributes that a module lacks.
  // Source: PEP 562. The module is borrowed: a reference would be a cycle.
  module.def(
      "__getattr__", [module = py::handle(module)](std::string_view name) {
        return LazyAttribute(py::reinterpret_borrow<py::module_>(module), name);
      });
}

PythonAllReduce::PythonAllReduce(py::handle object) : object_(object) {
  if (object.is_none() || py::isinstance<AllReduceInterface>(object)) return;
  throw py::type_error(
      StrCat("all_reduce_interface must be an AllReduceInterface or None, got ",
             py::type::of(object).attr("__name__").cast<std::string>(),
             ". get_all_reduce_interface makes one."));
}

template <typename T>
Result<T> PythonAllReduce::Reduce(const char* method, int32_t sync_key,
                                  T value) {
  const ScopedLock locked;
  try {
    const py::object result = object_.attr(method)(sync_key, value);
    // None would be a false bool: the method that forgot to return.
    py::detail::make_caster<T> number;
    if (!result.is_none() && number.load(result, /*convert=*/true)) {
      return py::detail::cast_op<T>(number);
    }
    return FailedPrecondition(
        "all_reduce_interface.", method, "(sync_key=", sync_key,
        ") must return ",
        std::is_same_v<T, bool> ? "a bool" : "an int in [0, 2**64)", ", got ",
        py::repr(result).cast<std::string>(), ".");
  } catch (py::error_already_set& error) {
    raised_ = std::move(error);
    return FailedPrecondition("all_reduce_interface.", method,
                              "(sync_key=", sync_key, ") failed.");
  }
}

Result<bool> PythonAllReduce::AnyOf(int32_t sync_key, bool value) {
  return Reduce(kAnyOf, sync_key, value);
}

Result<uint64_t> PythonAllReduce::BitwiseOr(int32_t sync_key, uint64_t value) {
  return Reduce(kBitwiseOr, sync_key, value);
}

void PythonAllReduce::RethrowPythonError() {
  if (!raised_) return;
  py::error_already_set error = *std::exchange(raised_, std::nullopt);
  const bool is_final =
      error.matches(PyExc_RuntimeError) || !error.matches(PyExc_Exception);
  if (!is_final) {
    const std::string message =
        StrCat("Reduction between hosts failed: ",
               error.type().attr("__name__").cast<std::string>(), ": ",
               py::str(error.value()).cast<std::string>());
    py::raise_from(error, PyExc_RuntimeError, message.c_str());
    throw py::error_already_set();
  }
  throw error;
}

}  // namespace jte::binding
