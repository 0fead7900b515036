// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Stage 2: sorts the elements of one SparseCore.
//
// A least significant digit radix sort over the bits of the key that can
// differ. It is stable, and elements arrive in order of their payloads, so it
// need not look at the payloads: the result is ascending as whole numbers.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_RADIX_SORT_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_RADIX_SORT_H_

#include <cstdint>
#include <span>

namespace jte {

// Requires: payloads (the low 32 bits) ascend; keys (the high 32 bits) are
// below 2^num_key_bits; `buffer` is as large as `elements`, at most 2^32 - 1.
// Returns the one of the two that holds the sorted elements.
//
// Time: linear in elements, times the number of digits.
std::span<uint64_t> SortElements(std::span<uint64_t> elements,
                                 std::span<uint64_t> buffer, int num_key_bits);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_RADIX_SORT_H_
