// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of a table in low precision, read into a buffer of float and written
// back.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_ROWS_H_

#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

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
