// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Python's interpreter lock, for threads that may outlive the interpreter.
//
// When the main thread ends, Python (before 3.14) ends a daemon thread that
// asks for the lock: it unwinds the thread's stack. In a destructor, pybind11's
// gil_scoped_release for one, that ends the whole process; elsewhere,
// destructors would touch Python objects without the lock. So the thread waits
// instead, for the end of the process, as Python 3.14 has it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_INTERPRETER_LOCK_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_INTERPRETER_LOCK_H_

#include <cxxabi.h>
#include <unistd.h>

#include <optional>

#include "pybind11/pybind11.h"

namespace jte::binding {

// Calls `take_lock`. Does not return if Python ends the thread. The exception
// of that has no object for the reference, which UBSan would take for an error.
// Clang does not know [[gnu::no_sanitize]].
template <typename TakeLock>
__attribute__((no_sanitize("null"))) void TakeLockOrWaitForever(
    TakeLock take_lock) {
  try {
    take_lock();
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

// Without the lock while in scope.
class ScopedUnlock {
 public:
  ScopedUnlock() : state_(PyEval_SaveThread()) {}
  ~ScopedUnlock() {
    TakeLockOrWaitForever([this] { PyEval_RestoreThread(state_); });
  }
  ScopedUnlock(const ScopedUnlock&) = delete;
  ScopedUnlock& operator=(const ScopedUnlock&) = delete;

 private:
  PyThreadState* const state_;
};

// With the lock while in scope, in a ScopedUnlock.
class ScopedLock {
 public:
  ScopedLock() {
    TakeLockOrWaitForever([this] { lock_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> lock_;
};

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_INTERPRETER_LOCK_H_
