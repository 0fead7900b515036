// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Reductions between hosts that Python code carries out.
//
// RegisterAllReduce adds the class AllReduceInterface, for Python to subclass:
//
//   class MyReduction(AllReduceInterface):
//     def any_of(self, sync_key: int, value: bool) -> bool: ...
//     def bitwise_or(self, sync_key: int, value: int) -> int: ...
//
// PythonAllReduce makes such an object the AllReduce of one call:
//
//   PythonAllReduce all_reduce(object);               // or None
//   auto result = ...;                                // without the lock
//   all_reduce.RethrowPythonError();                  // with it, before
//   ValueOrThrow(std::move(result));                  // looking at the result

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ALL_REDUCE_BINDING_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ALL_REDUCE_BINDING_H_

#include <cstdint>
#include <optional>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/collective/all_reduce.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// Also gives the module the attribute MinibatchingNode, the reduction over gRPC
// (lib/core/all_reduce), which is imported when it is first asked for.
void RegisterAllReduce(pybind11::module_& module);

// Needs the interpreter lock, except where a function says otherwise.
class PythonAllReduce final : public collective::AllReduce {
 public:
  // Throws a TypeError if `object` is neither None nor an AllReduceInterface.
  // Refers to it: the caller keeps it alive.
  explicit PythonAllReduce(pybind11::handle object);

  // What the converter takes: null if the object is None.
  collective::AllReduce* get() { return object_.is_none() ? nullptr : this; }

  // Both run on any thread, with or without the lock, one call at a time.
  Result<bool> AnyOf(int32_t sync_key, bool value) override;
  Result<uint64_t> BitwiseOr(int32_t sync_key, uint64_t value) override;

  // Throws what Python raised during a reduction, if it did: itself if it is a
  // RuntimeError or no Exception at all (KeyboardInterrupt), otherwise as the
  // cause of a RuntimeError.
  void RethrowPythonError();

 private:
  template <typename T>
  Result<T> Reduce(const char* method, int32_t sync_key, T value);

  pybind11::handle object_;
  std::optional<pybind11::error_already_set> raised_;
};

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_ALL_REDUCE_BINDING_H_
