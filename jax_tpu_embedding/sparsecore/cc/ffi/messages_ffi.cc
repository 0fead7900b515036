// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a device does between the collectives of a lookup or an update by
// messages: targets "jte_pack_messages_cpu", "jte_read_rows_cpu" and
// "jte_sum_gradients_cpu". The math is kernels/exchange/messages.h. They fail
// for what is wrong in the program only, hence on every device.
//
// The last two have twice as many results as there are devices. The second half
// is memory that nobody reads or writes, and that XLA gives to the all-to-all
// that follows. That would provide its pages one by one, small ones; here they
// are provided at once, huge ones. A step with SGD of 16384 x 20 ids on 4
// devices takes 0.7 of the CPU time, and a lookup 0.6; neither more memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/message_blocks.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using FloatMatrix = xffi::BufferR2<xffi::F32>;

// Blocks are new memory in most calls.
void ProvidePages(const kernels::TableValues& block, Executor& executor) {
  const std::span<std::byte> bytes = std::visit(
      [](auto values) { return std::as_writable_bytes(values); }, block);
  AllowHugePages(bytes);
  PopulateNewPages(bytes, executor);
}

Result<void> CheckedPack(Executor& executor, const CooOperands& coo,
                         const IntVector& entry_pointers,
                         const IntVector& places, const IntVector& samples,
                         const FloatVector& entry_gains,
                         xffi::RemainingRets rets, int64_t num_sc_per_device,
                         bool enable_minibatching, int64_t rows_per_device,
                         int64_t batch_size) {
  JTE_ASSIGN_OR_RETURN(const auto blocks,
                       ReadBlocks<IntVector>(rets, rets.size(), "requests"));
  JTE_ASSIGN_OR_RETURN(auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    rows_per_device, batch_size));
  geometry.num_devices = std::ssize(blocks);
  const int64_t capacity = blocks.front().element_count();
  if (!kernels::NumbersFit(geometry.num_devices, capacity, 31)) {
    return InvalidArgument("The blocks of ", geometry.num_devices,
                           " devices have ", capacity,
                           " rows each, expected numbers of 31 bits. Lower "
                           "max_unique_ids_per_partition.");
  }
  std::vector<std::span<int32_t>> requests;
  for (const IntVector& block : blocks) {
    requests.push_back(ToSpan<int32_t>(block));
  }
  // Not ToCooBuffers, which refuses those of a conversion that failed: here
  // they are buffers whose partitions are not valid.
  kernels::PackMessages(coo.Spans(), geometry, requests,
                        {.row_pointers = ToSpan<int32_t>(entry_pointers),
                         .places = ToSpan<int32_t>(places),
                         .samples = ToSpan<int32_t>(samples),
                         .gains = ToSpan<float>(entry_gains)},
                        executor);
  return {};
}

Result<void> CheckedReadRows(Executor& executor,
                             const xffi::AnyBuffer& table_buffer,
                             xffi::RemainingArgs args,
                             xffi::RemainingRets rets) {
  JTE_ASSIGN_OR_RETURN(const auto table, ToTable(table_buffer));
  JTE_ASSIGN_OR_RETURN(
      const auto numbers,
      ReadBlocks<IntVector>(args, 0, args.size(), "wanted rows"));
  JTE_ASSIGN_OR_RETURN(const auto results, ReadBlocks<xffi::AnyBuffer>(
                                               rets, 2 * args.size(), "rows"));
  std::vector<std::span<const int32_t>> wanted;
  for (const IntVector& block : numbers) {
    wanted.push_back(ToSpan<const int32_t>(block));
  }
  const int64_t capacity = std::ssize(wanted.front());
  std::vector<kernels::TableValues> blocks;
  for (const xffi::AnyBuffer& result : results) {
    JTE_ASSIGN_OR_RETURN(const auto block, ToTable(result));
    if (block.values.index() != table.values.index() ||
        block.num_rows != capacity || block.dim != table.dim) {
      return InvalidArgument("The rows have shape [", block.num_rows, ", ",
                             block.dim, "], expected [", capacity, ", ",
                             table.dim, "], and the type of the table.");
    }
    blocks.push_back(block.values);
    ProvidePages(block.values, executor);
  }
  blocks.resize(args.size());
  const kernels::ConstTableValues values = std::visit(
      []<typename T>(std::span<T> values) -> kernels::ConstTableValues {
        TableMemory::OfProcess().Used(std::as_writable_bytes(values));
        return std::span<const T>(values);
      },
      table.values);
  kernels::ReadRows(values, table.dim, wanted, blocks, executor);
  return {};
}

Result<void> CheckedSumGradients(
    Executor& executor, const IntVector& row_pointers, const IntVector& places,
    const IntVector& samples, const FloatVector& gains,
    const FloatMatrix& gradient, xffi::RemainingRets rets) {
  const size_t num_devices = rets.size() / 2;
  JTE_ASSIGN_OR_RETURN(
      const auto results,
      ReadBlocks<FloatMatrix>(rets, 2 * num_devices, "gradients of rows"));
  const int64_t dim = gradient.dimensions()[1];
  std::vector<std::span<float>> blocks;
  for (const FloatMatrix& result : results) {
    if (result.dimensions()[1] != dim) {
      return InvalidArgument("The gradients of rows have ",
                             result.dimensions()[1],
                             " columns, expected the gradient's ", dim, ".");
    }
    blocks.push_back(ToSpan<float>(result));
    ProvidePages(blocks.back(), executor);
  }
  blocks.resize(num_devices);
  kernels::SumGradients({.row_pointers = ToSpan<const int32_t>(row_pointers),
                         .places = ToSpan<const int32_t>(places),
                         .samples = ToSpan<const int32_t>(samples),
                         .gains = ToSpan<const float>(gains)},
                        ToSpan<const float>(gradient), dim, blocks, executor);
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JtePackMessagesCpu, kCooOnPool<CheckedPack>,
                              BindCooOnPool()
                                  .Ret<IntVector>()    // of entries
                                  .Ret<IntVector>()    // places
                                  .Ret<IntVector>()    // samples
                                  .Ret<FloatVector>()  // gains
                                  .RemainingRets()     // requests, by device
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching")
                                  .Attr<int64_t>("rows_per_device")
                                  .Attr<int64_t>("batch_size"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteReadRowsCpu, kOnPool<CheckedReadRows>,
    xffi::Ffi::Bind()
        .Ctx<xffi::ThreadPool>()
        .Arg<xffi::AnyBuffer>()  // table
        .RemainingArgs()         // wanted, by device
        .RemainingRets());       // rows, by device; room for as many

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteSumGradientsCpu, kOnPool<CheckedSumGradients>,
    xffi::Ffi::Bind()
        .Ctx<xffi::ThreadPool>()
        .Arg<IntVector>()    // of entries
        .Arg<IntVector>()    // places
        .Arg<IntVector>()    // samples
        .Arg<FloatVector>()  // gains
        .Arg<FloatMatrix>()  // activation_gradient
        .RemainingRets());   // sums, by device; room for as many

}  // namespace jte::ffi
