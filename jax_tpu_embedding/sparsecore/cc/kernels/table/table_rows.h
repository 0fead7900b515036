// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of a table in low precision, read into a buffer of float and written
// back.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_ROWS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

// Where the bits to round with come from: the seed, and the place of a value in
// the table as a whole. So they do not depend on how the table is cut.
struct StochasticRounding {
  uint32_t seed;
  int64_t num_shards;      // of all devices
  int64_t first_shard;     // of this device
  int64_t rows_per_shard;  // of the table
};

// buffer[i, :] = row rows[i] of `table`, for a table of `dim` columns.
template <typename T>
void ReadRows(std::span<const T> table, int64_t dim,
              std::span<const int32_t> rows, float* buffer);

// Row rows[i] of `table` = buffer[i, :], rounded; to nearest without
// `rounding`.
template <typename T>
void WriteRows(const float* buffer, int64_t dim, std::span<const int32_t> rows,
               const std::optional<StochasticRounding>& rounding,
               std::span<T> table);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_ROWS_H_
