// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"

#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/stochastic_rounding.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

namespace {

template <typename T>
JTE_VECTOR_CLONES void ConvertRow(const T* __restrict row, int64_t dim,
                                  float* __restrict out) {
  for (int64_t d = 0; d < dim; ++d) out[d] = ToFloat(row[d]);
}

template <typename T>
JTE_VECTOR_CLONES void RoundRow(const float* __restrict values, int64_t dim,
                                T* __restrict row) {
  for (int64_t d = 0; d < dim; ++d) row[d] = RoundToNearest<T>(values[d]);
}

template <typename T>
JTE_VECTOR_CLONES void RoundRowAtRandom(const float* __restrict values,
                                        int64_t dim, uint32_t seed,
                                        uint32_t first, T* __restrict row) {
  for (int64_t d = 0; d < dim; ++d) {
    row[d] = RoundAtRandom<T>(values[d], RandomBits(seed, first, d));
  }
}

}  // namespace

template <typename T>
void ReadRows(std::span<const T> table, int64_t dim,
              std::span<const int32_t> rows, float* buffer) {
  for (const int64_t row : rows) {
    ConvertRow(table.data() + row * dim, dim, buffer);
    buffer += dim;
  }
}

template <typename T>
void WriteRows(const float* buffer, int64_t dim, std::span<const int32_t> rows,
               const std::optional<StochasticRounding>& rounding,
               std::span<T> table) {
  for (const int64_t row : rows) {
    T* out = table.data() + row * dim;
    if (rounding) {
      const uint32_t first = FirstCounter(*rounding, row);
      RoundRowAtRandom(buffer, dim, rounding->seed, first, out);
    } else {
      RoundRow(buffer, dim, out);
    }
    buffer += dim;
  }
}

template void ReadRows(std::span<const Bfloat16>, int64_t,
                       std::span<const int32_t>, float*);
template void ReadRows(std::span<const Float16>, int64_t,
                       std::span<const int32_t>, float*);
template void WriteRows(const float*, int64_t, std::span<const int32_t>,
                        const std::optional<StochasticRounding>&,
                        std::span<Bfloat16>);
template void WriteRows(const float*, int64_t, std::span<const int32_t>,
                        const std::optional<StochasticRounding>&,
                        std::span<Float16>);

}  // namespace jte::kernels
