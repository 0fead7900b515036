// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"

#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

namespace {

// Every bit of the result depends on every bit of `x`.
//
// Source: the finalizer of MurmurHash3 (Appleby).
[[gnu::always_inline]] inline uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

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
    const uint32_t random = Mix(seed ^ Mix(first + static_cast<uint32_t>(d)));
    row[d] = RoundAtRandom<T>(values[d], random);
  }
}

// What row `row` of the device is called in the table as a whole.
uint32_t GlobalRow(const StochasticRounding& rounding, int64_t row) {
  const int64_t shard = rounding.first_shard + row / rounding.rows_per_shard;
  return static_cast<uint32_t>(
      row % rounding.rows_per_shard * rounding.num_shards + shard);
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
      const uint32_t first = GlobalRow(*rounding, row) * 0x9e3779b1;
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
