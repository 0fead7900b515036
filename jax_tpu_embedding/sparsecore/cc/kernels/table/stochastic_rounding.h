// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Random bits to round values of a table with: a hash of the seed and of the
// value's place in the table as a whole. So they do not depend on how the table
// is cut, or on who rounds first.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_STOCHASTIC_ROUNDING_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_STOCHASTIC_ROUNDING_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/host_device.h"

namespace jte::kernels {

struct StochasticRounding {
  uint32_t seed;
  int64_t num_shards;      // of all devices
  int64_t first_shard;     // of this device
  int64_t rows_per_shard;  // of the table
};

// The counter of column 0 of row `row` of the device's table. Those of the
// columns follow it.
JTE_HOST_DEVICE inline uint32_t FirstCounter(const StochasticRounding& rounding,
                                             int64_t row) {
  const int64_t shard = rounding.first_shard + row / rounding.rows_per_shard;
  const int64_t row_of_table =
      row % rounding.rows_per_shard * rounding.num_shards + shard;
  return static_cast<uint32_t>(row_of_table) * 0x9e3779b1;
}

// Every bit of the result depends on every bit of `x`.
//
// Source: the finalizer of MurmurHash3 (Appleby).
[[gnu::always_inline]] JTE_HOST_DEVICE inline uint32_t MixBits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

[[gnu::always_inline]] JTE_HOST_DEVICE inline uint32_t RandomBits(
    uint32_t seed, uint32_t first_counter, int64_t column) {
  return MixBits(seed ^ MixBits(first_counter + static_cast<uint32_t>(column)));
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_STOCHASTIC_ROUNDING_H_
