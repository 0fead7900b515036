// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// NumPy arrays whose memory is used again when they are gone.
//
// An array refers to its memory through its base object. When the last array,
// view or zero-copy alias goes, the memory returns to the pool, and the next
// array of that many bytes gets it. A loop that converts batches of one shape
// then allocates nothing after its first steps, and never faults in new pages.
//
//   py::array gains = pool.Take(py::dtype::of<float>(), {rows, columns});
//
// Guarantees: memory is never handed out while anything refers to it; arrays
// outlive the pool; data is 64-byte aligned, which lets JAX alias it on CPU.
// Contents are whatever the last user left: every element must be written.
//
// Threading: everything here runs with the interpreter lock, which is what
// guards it. The lock is also what makes a fork safe, since no thread can be
// halfway through a change; the child then has its own copy of the pool.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_POOL_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_POOL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/cache_budget.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

class OutputPool {
 public:
  // Idle memory beyond max_bytes is freed, the oldest first; default: none is.
  // Throws a ValueError if it is negative.
  explicit OutputPool(std::optional<int64_t> max_bytes);

  // What the pool of the process keeps, if the budget of the process's caches
  // has room for it (base/cache_budget.h): two results of the largest batches
  // that are measured (benchmarks/preprocessing: 3.5 M ids, 50 MB). Without it,
  // new pages took 1.1 to 1.4 of 8 to 11 ns per id there.
  static constexpr int64_t kMaxIdleBytesOfProcess = int64_t{128} << 20;

  // The pool of all calls that are not passed one.
  static OutputPool& OfProcess();

  // What the data of an array is aligned to: a cache line, which lets JAX alias
  // it on CPU.
  static constexpr int64_t kAlignment = 64;

  // Memory of unspecified contents, which returns to the pool when the last
  // reference to its owner goes. Throws a MemoryError.
  struct Block {
    pybind11::capsule owner;
    void* data;
  };
  Block Take(int64_t num_bytes);

  // An array of such memory. Throws a TypeError for types whose elements are,
  // or have, references, and for those that have no size.
  pybind11::array Take(const pybind11::dtype& dtype,
                       const std::vector<int64_t>& shape);

  // Frees what no array uses.
  void Clear();

  // The limit of idle memory; none: all is kept.
  std::optional<int64_t> max_bytes() const;
  void SetMaxBytes(std::optional<int64_t> max_bytes);

  // Bytes of all blocks, and of those that no array uses.
  int64_t allocated_bytes() const;
  int64_t idle_bytes() const;
  // How many arrays got new memory, and how many that of an earlier one.
  int64_t num_allocated() const;
  int64_t num_reused() const;

 private:
  class Blocks;

  OutputPool(std::optional<int64_t> max_bytes, CacheBudget* budget);

  // Shared with the arrays that are handed out.
  std::shared_ptr<Blocks> blocks_;
};

// Adds the class OutputPool.
void RegisterOutputPool(pybind11::module_& module);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_POOL_H_
