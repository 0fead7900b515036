// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How many cells the buffers of a stack have, and whether they can have them.
//
// cc/layout/csr_layout.h has the formulas; this file checks what users pass
// into them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_BUFFER_SIZE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_BUFFER_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {

// What a user says about a stack. Python: StackedTableSpec.
struct StackSpec {
  std::string name = {};
  std::string combiner;
  int64_t max_ids_per_partition = 0;
  int64_t max_unique_ids_per_partition = 0;
  std::optional<int64_t> suggested_coo_buffer_size_per_device = std::nullopt;
};

// Errors: a count that is not positive, more local than global devices, or
// more SparseCores than the sizes of the buffers can be computed for.
Result<void> CheckTopology(const Topology& topology);

// COO cells of one device: the suggestion rounded up to a whole number of
// aligned cells per SparseCore, or without one the most that batches within
// max_ids_per_partition can fill. `topology` is checked.
//
// Errors: limits that are not positive, a suggestion above that most, or a
// number of cells that does not fit int32.
Result<int64_t> CooCellsPerDevice(const StackSpec& spec,
                                  const Topology& topology,
                                  bool enable_minibatching);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_BUFFER_SIZE_H_
