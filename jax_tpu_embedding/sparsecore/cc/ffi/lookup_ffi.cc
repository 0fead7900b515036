// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_lookup_cpu": the lookup of one stack on one device. The math is
// kernels/lookup.h. Over several devices of one process there is one more
// operand, their records, and rows are read from the tables that these name.
// Target "jte_lookup_fetched_cpu": the lookup by messages, once rows are here.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/error_to_ffi.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/message_blocks.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/table_memory.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte {
namespace {

namespace ffi = xla::ffi;

// None, or minimum, maximum and number of buckets.
Result<std::optional<Quantization>> ReadQuantization(
    std::span<const double> numbers) {
  if (numbers.empty()) return std::nullopt;
  if (numbers.size() != 3 || !(numbers[0] < numbers[1]) || numbers[2] < 2) {
    return InvalidArgument(
        "quantization has ", numbers.size(),
        " numbers, expected none, or a minimum, a maximum above it, and two or "
        "more buckets.");
  }
  return Quantization{.min_value = numbers[0],
                      .max_value = numbers[1],
                      .num_buckets = static_cast<int64_t>(numbers[2])};
}

ConstTableValues ReadOnly(const TableValues& values) {
  return std::visit(
      []<typename T>(std::span<T> values) -> ConstTableValues {
        return std::span<const T>(values);
      },
      values);
}

// The tables of all devices; `table` is one of them, `own` what this one has
// published.
Result<std::vector<ConstTableValues>> ReadTables(ffi::RemainingArgs args,
                                                 const Table& table,
                                                 const Published& own) {
  const auto words = args.get<WordsByDevice>(0);
  if (words.has_error()) {
    return InvalidArgument("Records must be uint32 of rank 2.");
  }
  const auto devices = ReadPublished(*words, own);
  if (!devices) return std::unexpected(devices.error());
  std::vector<ConstTableValues> tables;
  for (const Published& device : *devices) {
    tables.push_back(std::visit(
        [&device]<typename T>(std::span<T> values) -> ConstTableValues {
          return std::span(reinterpret_cast<const T*>(device.rows.data()),
                           values.size());
        },
        table.values));
  }
  return tables;
}

// Makes the pages of what the lookup reads and writes fit for it.
//
// A table that is looked up where it is in every step gets huge pages: a lookup
// of 1 M x 64 float32 takes 0.72 of the time with 16384 x 20 uniform ids, 0.65
// with Zipf 1.05. Activations often are new memory; one page at a time, 4 MiB
// take 1.2 ms in a virtual machine, and 0.7 all at once.
void PreparePages(const Table& table, const Matrix& activations,
                  Executor& executor) {
  std::visit(
      [](auto values) {
        TableMemory::OfProcess().Used(std::as_writable_bytes(values));
      },
      table.values);
  PopulateNewPages(std::as_writable_bytes(activations.values), executor);
}

Result<void> CheckedLookup(Executor& executor, const IntVector& row_pointers,
                           const IntVector& embedding_ids,
                           const IntVector& sample_ids,
                           const FloatVector& gains,
                           const IntScalar& num_minibatches,
                           const ffi::AnyBuffer& table_buffer,
                           ffi::RemainingArgs args,
                           const ffi::AnyBuffer& result, int64_t num_devices,
                           int64_t num_sc_per_device, bool enable_minibatching,
                           std::span<const double> quantization_numbers) {
  const auto buffers =
      ToCooBuffers(row_pointers, embedding_ids, sample_ids, gains);
  if (!buffers) return std::unexpected(buffers.error());
  const auto table = ToTable(table_buffer);
  if (!table) return std::unexpected(table.error());
  const auto activations = ToMatrix(result, "The activations");
  if (!activations) return std::unexpected(activations.error());
  auto geometry = MakeGeometry(num_sc_per_device, enable_minibatching,
                               *num_minibatches.typed_data(), table->num_rows,
                               activations->num_rows);
  if (!geometry) return std::unexpected(geometry.error());
  if (activations->dim != table->dim) {
    return InvalidArgument("The activations have ", activations->dim,
                           " columns, expected the table's ", table->dim, ".");
  }
  const auto quantization = ReadQuantization(quantization_numbers);
  if (!quantization) return std::unexpected(quantization.error());
  PreparePages(*table, *activations, executor);
  if (num_devices > 1) {
    geometry->num_devices = num_devices;
    const auto tables = ReadTables(args, *table,
                                   {.buffers = *buffers,
                                    .rows = BytesOf(table_buffer),
                                    .geometry = *geometry});
    if (!tables) return std::unexpected(tables.error());
    return LookupInTables(*buffers, *geometry, *tables, table->dim,
                          *quantization, activations->values, executor);
  }
  return Lookup(*buffers, *geometry, ReadOnly(table->values), table->dim,
                *quantization, activations->values, executor);
}

Result<void> CheckedLookupFetched(
    Executor& executor, const IntVector& row_pointers, const IntVector& slots,
    const IntVector& samples, const FloatVector& gains, ffi::RemainingArgs args,
    const ffi::AnyBuffer& result,
    std::span<const double> quantization_numbers) {
  const auto blocks =
      ReadBlocks<ffi::AnyBuffer>(args, 0, args.size(), "fetched rows");
  if (!blocks) return std::unexpected(blocks.error());
  const auto activations = ToMatrix(result, "The activations");
  if (!activations) return std::unexpected(activations.error());
  std::vector<ConstTableValues> tables;
  int64_t capacity = 0;
  for (const ffi::AnyBuffer& block : *blocks) {
    const auto table = ToTable(block);
    if (!table) return std::unexpected(table.error());
    if (table->dim != activations->dim) {
      return InvalidArgument("The activations have ", activations->dim,
                             " columns, expected the rows' ", table->dim, ".");
    }
    capacity = table->num_rows;
    tables.push_back(ReadOnly(table->values));
  }
  const auto quantization = ReadQuantization(quantization_numbers);
  if (!quantization) return std::unexpected(quantization.error());
  PopulateNewPages(std::as_writable_bytes(activations->values), executor);
  const ConstPackedEntries entries{
      .row_pointers = ToSpan<const int32_t>(row_pointers),
      .slots = ToSpan<const int32_t>(slots),
      .samples = ToSpan<const int32_t>(samples),
      .gains = ToSpan<const float>(gains)};
  if (entries.are_marked()) {
    std::ranges::fill(activations->values, std::bit_cast<float>(kQuietNaN));
    return {};
  }
  const CooBuffers buffers{.row_pointers = entries.row_pointers,
                           .embedding_ids = entries.slots,
                           .sample_ids = entries.samples,
                           .gains = entries.gains};
  const CooGeometry geometry{.num_sc_per_device = 1,
                             .rows_per_shard = capacity,
                             .batch_size_per_sc = activations->num_rows,
                             .enable_minibatching = false,
                             .num_minibatches = 1,
                             .num_devices = std::ssize(tables)};
  return LookupInTables(buffers, geometry, tables, activations->dim,
                        *quantization, activations->values, executor);
}

ffi::Error Handler(ffi::ThreadPool pool, IntVector row_pointers,
                   IntVector embedding_ids, IntVector sample_ids,
                   FloatVector gains, IntScalar num_minibatches,
                   ffi::AnyBuffer table, ffi::RemainingArgs args,
                   ffi::Result<ffi::AnyBuffer> activations, int64_t num_devices,
                   int64_t num_sc_per_device, bool enable_minibatching,
                   ffi::Span<const double> quantization) {
  ThreadPoolExecutor all_threads(pool);
  DeviceExecutor executor(all_threads, num_devices);
  return RunHandler(
      CheckedLookup, executor, row_pointers, embedding_ids, sample_ids, gains,
      num_minibatches, table, args, *activations, num_devices,
      num_sc_per_device, enable_minibatching,
      std::span<const double>(quantization.begin(), quantization.size()));
}

ffi::Error FetchedHandler(ffi::ThreadPool pool, IntVector row_pointers,
                          IntVector slots, IntVector samples, FloatVector gains,
                          ffi::RemainingArgs rows,
                          ffi::Result<ffi::AnyBuffer> activations,
                          ffi::Span<const double> quantization) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(
      CheckedLookupFetched, executor, row_pointers, slots, samples, gains, rows,
      *activations,
      std::span<const double>(quantization.begin(), quantization.size()));
}

}  // namespace

// The handlers' thread takes part in the work, so there is nothing left to wait
// for when they return, and they return an error rather than a future.
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupCpu, Handler,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<IntVector>()       // row_pointers
        .Arg<IntVector>()       // embedding_ids
        .Arg<IntVector>()       // sample_ids
        .Arg<FloatVector>()     // gains
        .Arg<IntScalar>()       // num_minibatches
        .Arg<ffi::AnyBuffer>()  // table
        .RemainingArgs()        // records, if any
        .Ret<ffi::AnyBuffer>()  // activations
        .Attr<int64_t>("num_devices")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching")
        .Attr<ffi::Span<const double>>("quantization"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupFetchedCpu, FetchedHandler,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<IntVector>()       // of entries
        .Arg<IntVector>()       // slots
        .Arg<IntVector>()       // samples
        .Arg<FloatVector>()     // gains
        .RemainingArgs()        // rows, by device
        .Ret<ffi::AnyBuffer>()  // activations
        .Attr<ffi::Span<const double>>("quantization"));

}  // namespace jte
