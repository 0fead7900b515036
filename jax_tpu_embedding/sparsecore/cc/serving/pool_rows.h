// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The inner loops of served lookups: encoded rows as floats, and sums of them.
//
// Values are decoded in registers and added up there, as the lookup of training
// does (cc/kernels/lookup/pool_samples.h), and in its order of operations:
// gain * value, then the sum. So a sum of encoded rows has the bits of that of
// the decoded ones, which tests compare it with.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_POOL_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_POOL_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// An encoded row, and the gain of the id that names it.
struct WeightedRow {
  const std::byte* row;
  float gain;
};

// Row i of `out`, of `columns` floats, becomes the sum of gain * row over
// rows[ends[i - 1]] to rows[ends[i] - 1].
void PoolRows(Encoding encoding, int64_t columns,
              std::span<const WeightedRow> rows, std::span<const int64_t> ends,
              float* out);

// Row i of `out` becomes rows[i].
void ReadRows(Encoding encoding, int64_t columns,
              std::span<const std::byte* const> rows, float* out);

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_POOL_ROWS_H_
