// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The arrays that a preprocessing call returns.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_ARRAYS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_ARRAYS_H_

#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/binding/output_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "pybind11/pybind11.h"

namespace jte::binding {

// Row pointers, embedding ids, sample ids and gains, each stack name -> array.
struct OutputArrays {
  pybind11::dict row_pointers;
  pybind11::dict embedding_ids;
  pybind11::dict sample_ids;
  pybind11::dict gains;
  std::vector<convert::CsrBuffers> buffers;  // views of them, stack by stack
};

// Arrays of unspecified contents, by the names of the stacks. All lie in one
// block of memory, which `pool` gets back when the last of them goes. Buffers
// of a batch are used and dropped together, and one large block is faster than
// many small ones: the kernel can give it huge pages.
OutputArrays MakeOutputArrays(std::span<const convert::StackPlan> stacks,
                              std::span<const pybind11::str> names,
                              bool enable_minibatching,
                              bool has_leading_dimension, OutputPool& pool);

}  // namespace jte::binding

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BINDING_OUTPUT_ARRAYS_H_
