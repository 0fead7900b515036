// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Many rows to bytes: EncodeRow of row_encoding.h with its bits, in vectors.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ENCODE_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ENCODE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// Rows that the encoding does not have: values that are not finite, or too
// large for it.
struct RefusedRows {
  int64_t first = -1;
  int64_t count = 0;
};

// Writes RowBytes for each row of `columns` values; of a refused row zeros.
//
// Requires: columns >= 1; values.size() is a multiple of it, and bytes.size()
// that of as many rows.
RefusedRows EncodeRows(Encoding encoding, int64_t columns,
                       std::span<const float> values,
                       std::span<std::byte> bytes);

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ENCODE_ROWS_H_
