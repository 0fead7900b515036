// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The memory that the converter fills; cc/layout/csr_layout.h has the picture.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_BUFFERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_BUFFERS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::convert {

// COO cells and row pointers: of all local devices, or a part of them.
struct CsrBuffers {
  std::span<int32_t> row_pointers;
  std::span<int32_t> embedding_ids;  // these three have one size
  std::span<int32_t> sample_ids;
  std::span<float> gains;
  // What cells that hold no entry get.
  float padding_gain = kPaddingGain;

  // The i-th of n equal parts.
  CsrBuffers Part(int64_t i, int64_t n) const {
    const auto part = [i, n](auto all) {
      const int64_t size = std::ssize(all) / n;
      return all.subspan(i * size, size);
    };
    return {.row_pointers = part(row_pointers),
            .embedding_ids = part(embedding_ids),
            .sample_ids = part(sample_ids),
            .gains = part(gains),
            .padding_gain = padding_gain};
  }

  CsrBuffers FirstCells(int64_t n) const {
    return {.row_pointers = row_pointers,
            .embedding_ids = embedding_ids.first(n),
            .sample_ids = sample_ids.first(n),
            .gains = gains.first(n),
            .padding_gain = padding_gain};
  }
};

// Fills `count` cells from `begin` on with padding. Inlined, so that a constant
// count becomes a few stores.
[[gnu::always_inline]] inline void Pad(const CsrBuffers& cells, int64_t begin,
                                       int64_t count) {
  std::fill_n(cells.embedding_ids.data() + begin, count, kPaddingId);
  std::fill_n(cells.sample_ids.data() + begin, count, kPaddingId);
  std::fill_n(cells.gains.data() + begin, count, cells.padding_gain);
}

// Pads from `position` to the next multiple of 8, if that is among the cells.
// May write more cells.
inline void PadToAlignment(const CsrBuffers& cells, int64_t position) {
  const auto num_cells = static_cast<int64_t>(cells.gains.size());
  if (position + kAlignment <= num_cells) {
    Pad(cells, position, kAlignment);  // a fixed number, which is faster
  } else if (position < num_cells) {
    Pad(cells, position, num_cells - position);
  }
}

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_CSR_BUFFERS_H_
