// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Which of sorted elements are one entry: those of the same row and sample.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COMPACT_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COMPACT_ENTRIES_H_

#include <cstdint>
#include <span>

namespace jte {

// How far beyond the last entry CompactEntries may write.
inline constexpr int64_t kCompactSlack = 16;

// The most elements that it takes.
inline constexpr int64_t kMaxCompactSize = 512;

// Where entries go; there is room for as many as elements, and kCompactSlack
// more.
struct EntryColumns {
  uint32_t* keys;
  int32_t* samples;
  float* gains;
  uint32_t* begins;  // position of the first element of each
};

// Merges what is one entry. The payloads of elements are samples. `id_gains`
// are gains of elements, which are added from left to right; without any, each
// is 1. Returns the number of entries.
//
// CPU time per element, with gains: 0.4 ns with AVX-512, whatever merges. Else
// 0.5 where nothing does, and 2 where much does, at places hard to predict.
int64_t CompactEntries(std::span<const uint64_t> elements,
                       std::span<const float> id_gains,
                       const EntryColumns& entries);

// The same for any machine.
int64_t CompactEntriesPortably(std::span<const uint64_t> elements,
                               std::span<const float> id_gains,
                               const EntryColumns& entries);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_COMPACT_ENTRIES_H_
