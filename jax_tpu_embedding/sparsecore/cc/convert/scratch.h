// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Memory that the stages work in, from base/scratch_pool.h.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"

namespace jte {

// What one SparseCore needs.
struct Scratch {
  ScratchArray<uint64_t> elements;
  ScratchArray<uint64_t> sorted_elements;
  ScratchArray<float> sample_factors;  // as in sample_factors.h
  ScratchArray<float> id_gains;
  ScratchArray<WeightedId> weighted_ids;
  ScratchArray<int32_t> num_ids;         // of each partition
  ScratchArray<int32_t> num_unique_ids;  // of each partition

  size_t capacity_bytes() const {
    return elements.capacity_bytes() + sorted_elements.capacity_bytes() +
           sample_factors.capacity_bytes() + id_gains.capacity_bytes() +
           weighted_ids.capacity_bytes() + num_ids.capacity_bytes() +
           num_unique_ids.capacity_bytes();
  }
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SCRATCH_H_
