// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of a table as values, of any width: read, and written in place.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TABLE_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TABLE_ROWS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

// Numbers of rows of a table; those that it does not have are none.
struct RowsOfTable {
  const int32_t* rows;
  int64_t size;  // how many
  int64_t num_table_rows;
  int64_t dim;
};

// values[i, :] = table[rows[i], :], or NaN for none.
//
// T: float, Bfloat16 or Float16. Both return null, or the message of an error.
template <typename T>
const char* ReadRows(Stream stream, const RowsOfTable& rows, const T* table,
                     T* values);

// table[rows[i], :] = values[i, :]; nothing for none. Requires: no row twice.
template <typename T>
const char* WriteRows(Stream stream, const RowsOfTable& rows, const T* values,
                      T* table);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_TABLE_ROWS_H_
