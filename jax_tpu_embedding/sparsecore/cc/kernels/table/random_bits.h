// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The random bits that jax.random draws for the elements of a table, for any of
// its rows: Threefry-2x32 of 20 rounds, of the key and of the position of the
// element, whose two words are combined by exclusive or. These are the bits
// that JAX has with jax_threefry_partitionable, its default.
//
// What XLA compiles of the same function for CPUs takes five times as long.
//
// Source of the function: Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_RANDOM_BITS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_RANDOM_BITS_H_

#include <array>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::kernels {

// Writes the bits of rows of a table of `width` columns.
//
//   key: that of jax.random.key_data.
//   rows: numbers of rows of the table.
//   bits: [rows, columns], of the first columns of each row; columns beyond
//     `width` have the bits of positions in later rows.
void DrawRandomBits(Executor& executor, std::array<uint32_t, 2> key,
                    std::span<const uint32_t> rows, uint32_t width,
                    std::span<uint32_t> bits);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_RANDOM_BITS_H_
