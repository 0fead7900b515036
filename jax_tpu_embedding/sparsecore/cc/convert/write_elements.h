// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Ids of one feature to elements (sort_key.h).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_WRITE_ELEMENTS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_WRITE_ELEMENTS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {

// Writes the elements of the n ids from `begin` on, with payloads[i] for the
// i-th of them. Returns false if an id is outside of the feature's table; its
// element is then meaningless.
//
// CPU time per id: 0.3 ns with AVX-512, 0.4 with AVX2, 0.7 without; twice as
// much if the number of SparseCores is no power of two.
bool WriteElements(const StackPlan& plan, const FeaturePlan& feature,
                   const IdSpan& ids, int64_t begin, int64_t n,
                   const uint32_t* payloads, uint64_t* elements);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_WRITE_ELEMENTS_H_
