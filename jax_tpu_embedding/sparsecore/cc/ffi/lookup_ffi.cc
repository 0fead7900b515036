// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_lookup_cpu": the lookup of one stack on one device. The math is
// kernels/lookup/lookup.h. Over several devices of one process there is one
// more operand, their records, and rows are read from the tables that these
// name. Target "jte_small_lookups_cpu": the lookups of several small stacks.
// Target "jte_lookup_fetched_cpu": the lookup by messages, once rows are
// here. Target "jte_lookup_part_cpu": what one device adds to the activations
// of another.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/lookup_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/message_blocks.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/small_stacks.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/buffers_or_nan.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using FloatMatrix = xffi::BufferR2<xffi::F32>;

Result<void> CheckedLookup(Executor& all_threads, const CooOperands& coo,
                           const xffi::AnyBuffer& table_buffer,
                           xffi::RemainingArgs args,
                           const xffi::AnyBuffer& result, int64_t num_devices,
                           int64_t num_sc_per_device, bool enable_minibatching,
                           std::span<const double> quantization_numbers) {
  DeviceExecutor executor(all_threads, num_devices);
  JTE_ASSIGN_OR_RETURN(const auto buffers, ToCooBuffers(coo));
  JTE_ASSIGN_OR_RETURN(const auto activations,
                       ToMatrix(result, "The activations"));
  JTE_ASSIGN_OR_RETURN(const auto table,
                       ToTableToRead(table_buffer, activations));
  JTE_ASSIGN_OR_RETURN(auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    table.num_rows, activations.num_rows));
  JTE_ASSIGN_OR_RETURN(const auto quantization,
                       ReadQuantization(quantization_numbers));
  PreparePages(table, activations, executor);
  if (IsRecordedFailure(buffers)) {
    FillWithNaN(activations);
    return {};
  }
  if (num_devices > 1) {
    geometry.num_devices = num_devices;
    const auto words = args.get<WordsByDevice>(0);
    if (words.has_error()) {
      return InvalidArgument("Records must be uint32 of rank 2.");
    }
    JTE_ASSIGN_OR_RETURN(const auto tables,
                         ReadTables(*words, table,
                                    {.buffers = buffers,
                                     .rows = BytesOf(table_buffer),
                                     .geometry = geometry}));
    return kernels::LookupInTables(buffers, geometry, tables, activations.dim,
                                   quantization, activations.values, executor);
  }
  return kernels::Lookup(buffers, geometry, table.rows, activations.dim,
                         quantization, activations.values, executor);
}

// The operands of one stack after those of the other.
Result<void> CheckedSmallLookups(xffi::RemainingArgs args,
                                 xffi::RemainingRets rets,
                                 std::string_view stacks,
                                 int64_t num_sc_per_device,
                                 bool enable_minibatching,
                                 std::span<const double> quantization_numbers) {
  constexpr int64_t kNumOperands = kNumCooOperands + 1;
  const auto num_stacks = static_cast<int64_t>(rets.size());
  return ForEachStack(
      num_stacks, stacks, [&](int64_t k, Executor& executor) -> Result<void> {
        JTE_ASSIGN_OR_RETURN(const CooOperands coo,
                             ReadCooOperands(args, k * kNumOperands));
        const auto table =
            args.get<xffi::AnyBuffer>(k * kNumOperands + kNumCooOperands);
        auto activations = rets.get<xffi::AnyBuffer>(k);
        if (table.has_error() || activations.has_error()) {
          return InvalidArgument("There is no table, or no room for results.");
        }
        return CheckedLookup(executor, coo, *table, args, **activations,
                             /*num_devices=*/1, num_sc_per_device,
                             enable_minibatching, quantization_numbers);
      });
}

Result<void> CheckedLookupFetched(
    Executor& executor, const IntVector& row_pointers, const IntVector& places,
    const IntVector& samples, const FloatVector& gains,
    xffi::RemainingArgs args, const xffi::AnyBuffer& result,
    std::span<const double> quantization_numbers) {
  JTE_ASSIGN_OR_RETURN(
      const auto blocks,
      ReadBlocks<xffi::AnyBuffer>(args, 0, args.size(), "fetched rows"));
  JTE_ASSIGN_OR_RETURN(const auto activations,
                       ToMatrix(result, "The activations"));
  std::vector<kernels::LookupTable> tables;
  int64_t capacity = 0;
  for (const xffi::AnyBuffer& block : blocks) {
    JTE_ASSIGN_OR_RETURN(const auto table, ToTableToRead(block, activations));
    capacity = table.num_rows;
    tables.push_back(table.rows);
  }
  JTE_ASSIGN_OR_RETURN(const auto quantization,
                       ReadQuantization(quantization_numbers));
  PopulateNewPages(std::as_writable_bytes(activations.values), executor);
  const kernels::ConstPackedEntries entries{
      .row_pointers = ToSpan<const int32_t>(row_pointers),
      .places = ToSpan<const int32_t>(places),
      .samples = ToSpan<const int32_t>(samples),
      .gains = ToSpan<const float>(gains)};
  if (entries.are_marked()) {
    FillWithNaN(activations);
    return {};
  }
  const kernels::CooBuffers buffers{.row_pointers = entries.row_pointers,
                                    .embedding_ids = entries.places,
                                    .sample_ids = entries.samples,
                                    .gains = entries.gains};
  const kernels::CooGeometry geometry{.num_sc_per_device = 1,
                                      .rows_per_shard = capacity,
                                      .batch_size_per_sc = activations.num_rows,
                                      .enable_minibatching = false,
                                      .num_minibatches = 1,
                                      .num_devices = std::ssize(tables)};
  return kernels::LookupInTables(buffers, geometry, tables, activations.dim,
                                 quantization, activations.values, executor);
}

// It fails for what is wrong in the program only, hence on every device: see
// kernels/exchange/buffers_or_nan.h.
Result<void> CheckedLookupPart(Executor& executor, const CooOperands& coo,
                               const xffi::AnyBuffer& table_buffer,
                               const IntScalar& device, const IntScalar& source,
                               const FloatMatrix& before,
                               const xffi::AnyBuffer& result,
                               int64_t num_devices, int64_t num_sc_per_device,
                               bool enable_minibatching,
                               std::span<const double> quantization_numbers) {
  JTE_ASSIGN_OR_RETURN(const auto activations,
                       ToMatrix(result, "The activations"));
  JTE_ASSIGN_OR_RETURN(const auto table,
                       ToTableToRead(table_buffer, activations));
  JTE_ASSIGN_OR_RETURN(const auto quantization,
                       ReadQuantization(quantization_numbers));
  JTE_ASSIGN_OR_RETURN(auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    table.num_rows, activations.num_rows));
  geometry.num_devices = num_devices;
  if (before.typed_data() != activations.values.data()) {
    return InvalidArgument(
        "The result is not the operand with the activations: alias operand 8 "
        "and result 0.");
  }
  const int32_t k = *source.typed_data();
  if (k < 0 || k >= num_devices) return {};
  const kernels::BuffersOrNaN batch(PartOf(coo.Spans(), k, num_devices),
                                    geometry, executor);
  if (batch.are_corrupt()) {
    FillWithNaN(activations);
    return {};
  }
  return kernels::AddRowsOf(*device.typed_data(), batch.buffers(), geometry,
                            table.rows, activations.dim, quantization,
                            activations.values, executor);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupCpu, kCooOnPool<CheckedLookup>,
    BindCooOnPool()
        .Arg<xffi::AnyBuffer>()  // table
        .RemainingArgs()         // records, if any
        .Ret<xffi::AnyBuffer>()  // activations
        .Attr<int64_t>("num_devices")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching")
        .Attr<xffi::Span<const double>>("quantization"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteSmallLookupsCpu, kHandler<CheckedSmallLookups>,
    xffi::Ffi::Bind()
        .RemainingArgs()  // row_pointers, embedding_ids, sample_ids, gains,
                          // num_minibatches and table, by stack
        .RemainingRets()  // activations, by stack
        .Attr<std::string_view>("stacks")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching")
        .Attr<xffi::Span<const double>>("quantization"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupFetchedCpu, kOnPool<CheckedLookupFetched>,
    xffi::Ffi::Bind()
        .Ctx<xffi::ThreadPool>()
        .Arg<IntVector>()        // of entries
        .Arg<IntVector>()        // places
        .Arg<IntVector>()        // samples
        .Arg<FloatVector>()      // gains
        .RemainingArgs()         // rows, by device
        .Ret<xffi::AnyBuffer>()  // activations
        .Attr<xffi::Span<const double>>("quantization"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupPartCpu, kCooOnPool<CheckedLookupPart>,
    BindCooOnPool()              // of all devices
        .Arg<xffi::AnyBuffer>()  // table
        .Arg<IntScalar>()        // the number of this device
        .Arg<IntScalar>()        // whose activations, if of any device
        .Arg<FloatMatrix>()      // activations
        .Ret<xffi::AnyBuffer>()  // the same, in place
        .Attr<int64_t>("num_devices")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching")
        .Attr<xffi::Span<const double>>("quantization"));

}  // namespace jte::ffi
