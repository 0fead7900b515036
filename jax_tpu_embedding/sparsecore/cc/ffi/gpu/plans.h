// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sizes of what conversions and the plans of batches need, for those who write
// the calls.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLANS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLANS_H_

#include <cstdint>

namespace jte::ffi {

// Bytes of the scratch result of jte_group_by_sample_cuda, and of
// jte_group_known_by_sample_cuda, which has no row pointers.
int64_t SampleGroupsScratchBytes(int64_t num_cells, int64_t num_row_pointers);

// Bytes of that of jte_group_by_row_cuda, and of jte_group_rows_cuda, which has
// no row pointers.
int64_t RowGroupsScratchBytes(int64_t num_cells, int64_t num_row_pointers);

// Bytes of that of jte_pack_messages_cuda.
int64_t PackScratchBytes(int64_t num_cells, int64_t num_row_pointers);

// Bytes of that of jte_convert_ids_cuda, for the ids and samples of all
// features of a stack, and a block for each SparseCore and shard.
int64_t ConversionScratchBytes(int64_t num_ids, int64_t num_samples,
                               int64_t num_blocks, int64_t num_features);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLANS_H_
