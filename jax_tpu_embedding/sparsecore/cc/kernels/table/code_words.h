// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of 8-bit codes, as words (lib/core/quantized_rows.py): the codes of four
// columns to a word, the first in the lowest bits; scale and bias as float32;
// zeros up to a multiple of 8 words. A number is code * scale + bias.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_CODE_WORDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_CODE_WORDS_H_

#include <bit>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte::kernels {

static_assert(std::endian::native == std::endian::little,
              "codes are read as the bytes of words");

enum class CodeWord : uint32_t {};

// Words of the codes of `dim` columns; scale and bias are the next two.
constexpr int64_t NumCodeWords(int64_t dim) { return CeilDiv(dim, int64_t{4}); }

constexpr int64_t CodeWordsPerRow(int64_t dim) {
  return RoundUp(NumCodeWords(dim) + 2, int64_t{8});
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_CODE_WORDS_H_
