// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Targets of plans: "jte_group_by_sample_cuda" and "jte_group_by_row_cuda", of
// a lookup and of an update from the buffers of a batch on one device;
// "jte_pack_messages_cuda", what one of several devices asks for; and
// "jte_group_known_by_sample_cuda" and "jte_group_rows_cuda", from what was
// packed or received.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/on_stream.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/plan_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/plans.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pack_messages.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

// Rows, samples, or cells: kernels count each in int32, as many as a grid has
// threads beyond the last.
constexpr int64_t kMost =
    std::numeric_limits<int32_t>::max() - gpu::kMaxThreads;

gpu::Partitions TakePartitions(ScratchCutter& scratch,
                               int64_t num_row_pointers) {
  // There is a row pointer for each, and others.
  return {.begins = scratch.Take<int32_t>(num_row_pointers),
          .ends = scratch.Take<int32_t>(num_row_pointers)};
}

gpu::SampleGroupsScratch TakeSampleGroupsScratch(ScratchCutter& scratch,
                                                 int64_t num_cells,
                                                 int64_t num_row_pointers) {
  return {.rows = scratch.Take<int32_t>(num_cells),
          .samples = scratch.Take<int32_t>(num_cells),
          .places = scratch.Take<int32_t>(num_cells),
          .cells = scratch.Take<int32_t>(num_cells),
          .has_long_samples = scratch.Take<int32_t>(1),
          .partitions = TakePartitions(scratch, num_row_pointers),
          .cub = TakeSort(scratch, num_cells)};
}

gpu::RowGroupsScratch TakeRowGroupsScratch(ScratchCutter& scratch,
                                           int64_t num_cells,
                                           int64_t num_row_pointers) {
  return {.keys = scratch.Take<int32_t>(num_cells),
          .unsorted_cells = scratch.Take<int32_t>(num_cells),
          .unsorted_samples = scratch.Take<int32_t>(num_cells),
          .partitions = TakePartitions(scratch, num_row_pointers),
          .sort = TakeSort(scratch, num_cells)};
}

gpu::PackScratch TakePackScratch(ScratchCutter& scratch, int64_t num_cells,
                                 int64_t num_row_pointers) {
  return {.partitions_of_cells = scratch.Take<int32_t>(num_cells),
          .are_first = scratch.Take<int32_t>(num_cells),
          .num_first = scratch.Take<int32_t>(num_cells),
          .offsets = scratch.Take<int32_t>(num_row_pointers),
          .partitions = TakePartitions(scratch, num_row_pointers),
          .sort = TakeSort(scratch, num_cells)};
}

gpu::CooBuffers ToGpuBuffers(const CooOperands& coo) {
  return {.row_pointers = coo.row_pointers.typed_data(),
          .embedding_ids = coo.embedding_ids.typed_data(),
          .sample_ids = coo.sample_ids.typed_data(),
          .gains = coo.gains.typed_data(),
          .num_minibatches = coo.num_minibatches.typed_data()};
}

Result<gpu::CooGeometry> MakeGpuGeometry(const CooOperands& coo,
                                         int64_t num_rows, int64_t batch_size,
                                         int64_t num_sc_per_device,
                                         bool enable_minibatching,
                                         int64_t num_devices = 1) {
  // Checks the sizes; what is in the buffers is not here.
  JTE_ASSIGN_OR_RETURN(
      const auto geometry,
      MakeGeometry(num_sc_per_device, enable_minibatching,
                   /*num_minibatches=*/1, num_rows, batch_size));
  const auto num_cells = coo.embedding_ids.element_count();
  if (coo.sample_ids.element_count() != num_cells ||
      coo.gains.element_count() != num_cells) {
    return InvalidArgument("embedding_ids, sample_ids and gains have ",
                           num_cells, ", ", coo.sample_ids.element_count(),
                           " and ", coo.gains.element_count(),
                           " cells, expected equal numbers.");
  }
  if (std::max({num_rows, batch_size, static_cast<int64_t>(num_cells)}) >
      kMost) {
    return InvalidArgument("The device has ", num_rows, " rows, ", batch_size,
                           " samples and ", num_cells,
                           " cells, expected at most ", kMost,
                           " of each. Use more devices.");
  }
  return gpu::CooGeometry{
      .num_row_pointers =
          static_cast<int64_t>(coo.row_pointers.element_count()),
      .num_cells = static_cast<int64_t>(num_cells),
      .num_devices = static_cast<int>(num_devices),
      .num_sc_per_device = static_cast<int>(num_sc_per_device),
      .rows_per_shard = geometry.rows_per_shard,
      .batch_size_per_sc = geometry.batch_size_per_sc,
      .enable_minibatching = enable_minibatching};
}

Result<void> GroupBySample(gpu::Stream stream, const CooOperands& coo,
                           const IntVector& begins, const IntVector& rows,
                           const FloatVector& sorted_gains,
                           const IntVector& flaws,
                           const xffi::AnyBuffer& scratch_buffer,
                           int64_t num_rows, int64_t batch_size,
                           int64_t num_sc_per_device,
                           bool enable_minibatching) {
  JTE_ASSIGN_OR_RETURN(const auto geometry,
                       MakeGpuGeometry(coo, num_rows, batch_size,
                                       num_sc_per_device, enable_minibatching));
  const int64_t num_cells = geometry.num_cells;
  JTE_RETURN_IF_ERROR(CheckScratch(
      scratch_buffer,
      SampleGroupsScratchBytes(num_cells, geometry.num_row_pointers)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::GroupBySample(
      stream, ToGpuBuffers(coo), geometry,
      TakeSampleGroupsScratch(scratch, num_cells, geometry.num_row_pointers),
      {.begins = begins.typed_data(),
       .rows = rows.typed_data(),
       .gains = sorted_gains.typed_data(),
       .flaws = reinterpret_cast<gpu::Flaws*>(flaws.typed_data())}));
}

Result<void> GroupByRow(gpu::Stream stream, const CooOperands& coo,
                        const IntVector& rows, const IntVector& samples,
                        const IntVector& starts, const IntVector& cells,
                        const IntMatrix& blocks, const IntMatrix& long_rows,
                        const IntVector& counts,
                        const xffi::AnyBuffer& scratch_buffer, int64_t num_rows,
                        int64_t batch_size, int64_t num_sc_per_device,
                        bool enable_minibatching, int64_t block_size) {
  JTE_ASSIGN_OR_RETURN(const auto geometry,
                       MakeGpuGeometry(coo, num_rows, batch_size,
                                       num_sc_per_device, enable_minibatching));
  const int64_t num_cells = geometry.num_cells;
  const RowGroupBuffers groups = {rows,   samples,   starts, cells,
                                  blocks, long_rows, counts};
  JTE_RETURN_IF_ERROR(CheckRowGroups(groups));
  JTE_RETURN_IF_ERROR(CheckScratch(
      scratch_buffer,
      RowGroupsScratchBytes(num_cells, geometry.num_row_pointers)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::GroupByRow(
      stream, ToGpuBuffers(coo), geometry, block_size,
      TakeRowGroupsScratch(scratch, num_cells, geometry.num_row_pointers),
      groups.Pointers()));
}

Result<void> GroupKnownBySample(gpu::Stream stream, const IntVector& rows,
                                const IntVector& samples,
                                const FloatVector& gains,
                                const IntVector& flaws, const IntVector& begins,
                                const IntVector& sorted_rows,
                                const FloatVector& sorted_gains,
                                const xffi::AnyBuffer& scratch_buffer) {
  const auto num_cells = static_cast<int64_t>(rows.element_count());
  JTE_RETURN_IF_ERROR(
      CheckScratch(scratch_buffer, SampleGroupsScratchBytes(num_cells, 0)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::GroupKnownBySample(
      stream,
      {.rows = rows.typed_data(),
       .samples = samples.typed_data(),
       .gains = gains.typed_data(),
       .num_cells = num_cells},
      static_cast<int64_t>(begins.element_count()) - 1,
      TakeSampleGroupsScratch(scratch, num_cells, 0),
      {.begins = begins.typed_data(),
       .rows = sorted_rows.typed_data(),
       .gains = sorted_gains.typed_data(),
       .flaws = reinterpret_cast<gpu::Flaws*>(flaws.typed_data())}));
}

// samples: of no elements, if the i-th row has sample i.
Result<void> GroupRows(gpu::Stream stream, const IntVector& numbers,
                       const IntVector& numbers_samples, const IntVector& rows,
                       const IntVector& samples, const IntVector& starts,
                       const IntVector& cells, const IntMatrix& blocks,
                       const IntMatrix& long_rows, const IntVector& counts,
                       const xffi::AnyBuffer& scratch_buffer, int64_t min_row,
                       int64_t max_row, int64_t block_size) {
  const auto size = static_cast<int64_t>(numbers.element_count());
  const auto num_samples =
      static_cast<int64_t>(numbers_samples.element_count());
  if (num_samples != 0 && num_samples != size) {
    return InvalidArgument("There are ", size, " rows and ", num_samples,
                           " samples, expected equal numbers, or none.");
  }
  if (max_row > std::numeric_limits<int32_t>::max() || size > kMost) {
    return InvalidArgument("There are ", size, " rows up to ", max_row,
                           ", expected at most ", kMost, " of them, up to ",
                           std::numeric_limits<int32_t>::max(),
                           ". Use more devices.");
  }
  const RowGroupBuffers groups = {rows,   samples,   starts, cells,
                                  blocks, long_rows, counts};
  JTE_RETURN_IF_ERROR(CheckRowGroups(groups));
  JTE_RETURN_IF_ERROR(
      CheckScratch(scratch_buffer, RowGroupsScratchBytes(size, 0)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::GroupRows(
      stream,
      {.rows = numbers.typed_data(),
       .samples = num_samples == 0 ? nullptr : numbers_samples.typed_data(),
       .size = size,
       .min_row = min_row,
       .max_row = max_row},
      block_size, TakeRowGroupsScratch(scratch, size, 0), groups.Pointers()));
}

Result<void> PackMessages(gpu::Stream stream, const CooOperands& coo,
                          const IntVector& requests, const IntVector& places,
                          const IntVector& samples,
                          const FloatVector& packed_gains,
                          const IntVector& flaws,
                          const xffi::AnyBuffer& scratch_buffer,
                          int64_t rows_per_device, int64_t batch_size,
                          int64_t num_sc_per_device, bool enable_minibatching,
                          int64_t num_devices) {
  JTE_ASSIGN_OR_RETURN(
      const auto geometry,
      MakeGpuGeometry(coo, rows_per_device, batch_size, num_sc_per_device,
                      enable_minibatching, num_devices));
  const auto num_places = static_cast<int64_t>(requests.element_count());
  if (num_places > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("The messages have ", num_places,
                           " rows, expected numbers of 31 bits. Lower "
                           "max_unique_ids_per_partition.");
  }
  JTE_RETURN_IF_ERROR(CheckScratch(
      scratch_buffer,
      PackScratchBytes(geometry.num_cells, geometry.num_row_pointers)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::PackMessages(
      stream, ToGpuBuffers(coo), geometry, num_places / num_devices,
      TakePackScratch(scratch, geometry.num_cells, geometry.num_row_pointers),
      {.requests = requests.typed_data(),
       .places = places.typed_data(),
       .samples = samples.typed_data(),
       .gains = packed_gains.typed_data(),
       .flaws = reinterpret_cast<gpu::Flaws*>(flaws.typed_data())}));
}

}  // namespace

int64_t SampleGroupsScratchBytes(int64_t num_cells, int64_t num_row_pointers) {
  ScratchCutter counter;
  TakeSampleGroupsScratch(counter, num_cells, num_row_pointers);
  return counter.num_bytes();
}

int64_t RowGroupsScratchBytes(int64_t num_cells, int64_t num_row_pointers) {
  ScratchCutter counter;
  TakeRowGroupsScratch(counter, num_cells, num_row_pointers);
  return counter.num_bytes();
}

int64_t PackScratchBytes(int64_t num_cells, int64_t num_row_pointers) {
  ScratchCutter counter;
  TakePackScratch(counter, num_cells, num_row_pointers);
  return counter.num_bytes();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteGroupBySampleCuda, kCooOnStream<GroupBySample>,
                              BindCooOnStream()
                                  .Ret<IntVector>()        // begins
                                  .Ret<IntVector>()        // rows
                                  .Ret<FloatVector>()      // gains
                                  .Ret<IntVector>()        // flaws
                                  .Ret<xffi::AnyBuffer>()  // scratch
                                  .Attr<int64_t>("num_rows")
                                  .Attr<int64_t>("batch_size")
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching"),
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteGroupByRowCuda, kCooOnStream<GroupByRow>,
                              BindCooOnStream()
                                  .Ret<IntVector>()        // rows
                                  .Ret<IntVector>()        // samples
                                  .Ret<IntVector>()        // starts
                                  .Ret<IntVector>()        // cells
                                  .Ret<IntMatrix>()        // blocks
                                  .Ret<IntMatrix>()        // long_rows
                                  .Ret<IntVector>()        // counts
                                  .Ret<xffi::AnyBuffer>()  // scratch
                                  .Attr<int64_t>("num_rows")
                                  .Attr<int64_t>("batch_size")
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching")
                                  .Attr<int64_t>("block_size"),
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteGroupKnownBySampleCuda,
                              kOnStream<GroupKnownBySample>,
                              BindOnStream()
                                  .Arg<IntVector>()         // rows
                                  .Arg<IntVector>()         // samples
                                  .Arg<FloatVector>()       // gains
                                  .Arg<IntVector>()         // flaws
                                  .Ret<IntVector>()         // begins
                                  .Ret<IntVector>()         // rows
                                  .Ret<FloatVector>()       // gains
                                  .Ret<xffi::AnyBuffer>(),  // scratch
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteGroupRowsCuda, kOnStream<GroupRows>,
                              BindOnStream()
                                  .Arg<IntVector>()        // rows
                                  .Arg<IntVector>()        // samples
                                  .Ret<IntVector>()        // rows
                                  .Ret<IntVector>()        // samples
                                  .Ret<IntVector>()        // starts
                                  .Ret<IntVector>()        // cells
                                  .Ret<IntMatrix>()        // blocks
                                  .Ret<IntMatrix>()        // long_rows
                                  .Ret<IntVector>()        // counts
                                  .Ret<xffi::AnyBuffer>()  // scratch
                                  .Attr<int64_t>("min_row")
                                  .Attr<int64_t>("max_row")
                                  .Attr<int64_t>("block_size"),
                              {xffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JtePackMessagesCuda, kCooOnStream<PackMessages>,
                              BindCooOnStream()
                                  .Ret<IntVector>()        // requests
                                  .Ret<IntVector>()        // places
                                  .Ret<IntVector>()        // samples
                                  .Ret<FloatVector>()      // gains
                                  .Ret<IntVector>()        // flaws
                                  .Ret<xffi::AnyBuffer>()  // scratch
                                  .Attr<int64_t>("rows_per_device")
                                  .Attr<int64_t>("batch_size")
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching")
                                  .Attr<int64_t>("num_devices"),
                              {xffi::Traits::kCmdBufferCompatible});

}  // namespace jte::ffi
