// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the handlers of GPUs take together: the buffers that a plan is made of,
// and the plan of an update.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLAN_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLAN_OPERANDS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/on_stream.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

using IntMatrix = xla::ffi::BufferR2<xla::ffi::S32>;

// As kCooOnPool and BindCooOnPool.
template <auto kBody>
inline constexpr auto kCooOnStream =
    kOnStream<[](gpu::Stream stream, const IntVector& row_pointers,
                 const IntVector& embedding_ids, const IntVector& sample_ids,
                 const FloatVector& gains, const IntScalar& num_minibatches,
                 const auto&... others) {
      return kBody(stream,
                   CooOperands{row_pointers, embedding_ids, sample_ids, gains,
                               num_minibatches},
                   others...);
    }>;

inline auto BindCooOnStream() {
  return BindOnStream()
      .Arg<IntVector>()    // row_pointers
      .Arg<IntVector>()    // embedding_ids
      .Arg<IntVector>()    // sample_ids
      .Arg<FloatVector>()  // gains
      .Arg<IntScalar>();   // num_minibatches
}

// gpu::RowGroups, as results of a plan or operands of what follows it.
struct RowGroupBuffers {
  IntVector rows;
  IntVector samples;
  IntVector starts;
  IntVector cells;
  IntMatrix blocks;
  IntMatrix long_rows;
  IntVector counts;

  int64_t num_cells() const {
    return static_cast<int64_t>(rows.element_count());
  }
  int64_t num_blocks() const { return blocks.dimensions()[0]; }
  gpu::RowGroups Pointers() const {
    return {
        .rows = rows.typed_data(),
        .samples = samples.typed_data(),
        .starts = starts.typed_data(),
        .cells = cells.typed_data(),
        .blocks = reinterpret_cast<gpu::RowBlock*>(blocks.typed_data()),
        .long_rows = reinterpret_cast<gpu::LongRow*>(long_rows.typed_data()),
        .counts = reinterpret_cast<gpu::GroupCounts*>(counts.typed_data())};
  }
};

// The handler that calls kBody with the stream and the RowGroupBuffers first;
// its binding begins with BindRowGroupsOnStream().
template <auto kBody>
inline constexpr auto kRowGroupsOnStream =
    kOnStream<[](gpu::Stream stream, const IntVector& rows,
                 const IntVector& samples, const IntVector& starts,
                 const IntVector& cells, const IntMatrix& blocks,
                 const IntMatrix& long_rows, const IntVector& counts,
                 const auto&... others) {
      return kBody(stream,
                   RowGroupBuffers{rows, samples, starts, cells, blocks,
                                   long_rows, counts},
                   others...);
    }>;

inline auto BindRowGroupsOnStream() {
  return BindOnStream()
      .Arg<IntVector>()   // rows
      .Arg<IntVector>()   // samples
      .Arg<IntVector>()   // starts
      .Arg<IntVector>()   // cells
      .Arg<IntMatrix>()   // blocks
      .Arg<IntMatrix>()   // long_rows
      .Arg<IntVector>();  // counts
}

// The sizes of the buffers, of which kernels know those of cells. A program
// that was exported by another version may have others.
inline Result<void> CheckRowGroups(const RowGroupBuffers& groups) {
  const int64_t n = groups.num_cells();
  const auto size = [](const IntVector& buffer) {
    return static_cast<int64_t>(buffer.element_count());
  };
  const int64_t of_block = groups.blocks.dimensions()[1];
  const int64_t of_long_row = groups.long_rows.dimensions()[1];
  constexpr int64_t kCounts = sizeof(gpu::GroupCounts) / sizeof(int32_t);
  constexpr int64_t kOfBlock = sizeof(gpu::RowBlock) / sizeof(int32_t);
  constexpr int64_t kOfLongRow = sizeof(gpu::LongRow) / sizeof(int32_t);
  if (size(groups.samples) == n && size(groups.starts) == n + 1 &&
      size(groups.cells) == n && of_block == kOfBlock &&
      of_long_row == kOfLongRow && size(groups.counts) == kCounts) {
    return {};
  }
  return InvalidArgument(
      "The plan of an update of ", n, " cells has ", size(groups.samples),
      " samples, ", size(groups.starts), " starts, ", size(groups.cells),
      " cells, blocks and long rows of ", of_block, " and ", of_long_row,
      " numbers, and ", size(groups.counts), " counts, expected ", n, ", ",
      n + 1, ", ", n, ", ", kOfBlock, ", ", kOfLongRow, " and ", kCounts,
      ". If the program was exported by another version, export it again.");
}

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_GPU_PLAN_OPERANDS_H_
