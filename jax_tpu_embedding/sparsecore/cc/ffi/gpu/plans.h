// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Sizes of what conversions and the plans of batches need, for those who write
// the calls.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLANS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLANS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"

namespace jte::ffi {

// The sizes of what a plan of an update has, of which kernels know those of
// cells. A program that was exported by another version may have others.
template <typename Ints, typename Matrix>
Result<void> CheckRowGroups(const Ints& rows, const Ints& samples,
                            const Ints& starts, const Ints& cells,
                            const Matrix& blocks, const Matrix& long_rows,
                            const Ints& counts) {
  const auto n = static_cast<int64_t>(rows.element_count());
  const auto size = [](const auto& buffer) {
    return static_cast<int64_t>(buffer.element_count());
  };
  constexpr int64_t kCounts = sizeof(gpu::GroupCounts) / sizeof(int32_t);
  constexpr int64_t kOfBlock = sizeof(gpu::RowBlock) / sizeof(int32_t);
  constexpr int64_t kOfLongRow = sizeof(gpu::LongRow) / sizeof(int32_t);
  if (size(samples) == n && size(starts) == n + 1 && size(cells) == n &&
      blocks.dimensions()[1] == kOfBlock &&
      long_rows.dimensions()[1] == kOfLongRow && size(counts) == kCounts) {
    return {};
  }
  return InvalidArgument(
      "The plan of an update of ", n, " cells has ", size(samples),
      " samples, ", size(starts), " starts, ", size(cells),
      " cells, blocks and long rows of ", blocks.dimensions()[1], " and ",
      long_rows.dimensions()[1], " numbers, and ", size(counts),
      " counts, expected ", n, ", ", n + 1, ", ", n, ", ", kOfBlock, ", ",
      kOfLongRow, " and ", kCounts,
      ". If the program was exported by another version, export it again.");
}

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
