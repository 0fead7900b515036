// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What stands for corrupt COO buffers where a device must not fail, since
// others would wait for it.
//
//   const BuffersOrNaN batch(buffers, geometry, executor);
//   ReadPartitions(batch.buffers(), batch.geometry())  // never fails
//
// Buffers that are valid stand for themselves. Others, those of a failed
// conversion among them, have NaN for gains, so that all rows that they name
// become NaN: a number that is out of range stands for the nearest that is not,
// and if partitions are not valid, all cells are entries for the first
// SparseCore. Without rows or samples there are no entries.
// lowering/reference/corrupt_buffers.py is the same in jnp, and says what is
// correct.
//
// Requires: as many row pointers as the geometry has. Complexity: the cells.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_BUFFERS_OR_NAN_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_BUFFERS_OR_NAN_H_

#include <cstdint>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::kernels {

class BuffersOrNaN {
 public:
  // `given` must outlive it.
  BuffersOrNaN(const CooBuffers& given, const CooGeometry& geometry,
               Executor& executor);
  BuffersOrNaN(BuffersOrNaN&&) = default;

  bool are_corrupt() const { return !gains_.empty(); }
  const CooBuffers& buffers() const { return buffers_; }
  // With a number of minibatches that is valid.
  const CooGeometry& geometry() const { return geometry_; }

 private:
  CooGeometry geometry_;
  CooBuffers buffers_;  // what was given, or views of what follows
  std::vector<int32_t> row_pointers_;
  std::vector<int32_t> embedding_ids_;
  std::vector<int32_t> sample_ids_;
  std::vector<float> gains_;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_EXCHANGE_BUFFERS_OR_NAN_H_
