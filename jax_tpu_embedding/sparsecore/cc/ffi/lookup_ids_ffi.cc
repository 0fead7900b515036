// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_lookup_ids_cpu": the lookup of one stack on one device, straight
// from ids. The math is kernels/lookup/lookup_ids.h. Target
// "jte_lookup_ids_of_devices_cpu": the same on one of several devices of a
// process. They read the tables of each other, and all fail in the same call
// (jte_hold_cpu): what is wrong with the ids of one is its second result, a
// record.
//
// There is always one minibatch; its number is an operand so that a check of
// the tables can hand it on.
//
// With keeps_errors, in programs that must not fail, what is wrong is recorded
// (recorded_failures.h) and the activations are NaN.

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/lookup_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/raw_id_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/recorded_failures.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using Doubles = xffi::Span<const double>;

// What the call is told beside the operands of the features.
struct Lookup {
  TableToRead table;
  Matrix activations;
  std::span<const double> quantization;
  int32_t num_minibatches;
  bool keeps_errors;
};

// What is wrong here is wrong in the program, hence on every device.
Result<Lookup> ReadLookup(const xffi::AnyBuffer& table,
                          const IntScalar& num_minibatches,
                          const xffi::AnyBuffer& result, Doubles quantization,
                          bool keeps_errors,
                          const StackAttributes& attributes) {
  JTE_RETURN_IF_ERROR(convert::CheckTopology(attributes.topology()));
  Lookup lookup = {};
  lookup.quantization = {quantization.begin(), quantization.size()};
  lookup.num_minibatches = *num_minibatches.typed_data();
  lookup.keeps_errors = keeps_errors;
  JTE_ASSIGN_OR_RETURN(lookup.activations, ToMatrix(result, "The activations"));
  JTE_ASSIGN_OR_RETURN(lookup.table, ToTableToRead(table, lookup.activations));
  if (lookup.table.num_rows % attributes.num_sc_per_device != 0) {
    return InvalidArgument("The table has ", lookup.table.num_rows,
                           " rows, which ", attributes.num_sc_per_device,
                           " SparseCores cannot share evenly.");
  }
  return lookup;
}

Result<void> LookUp(Executor& executor, const Lookup& lookup,
                    const xffi::RemainingArgs& operands,
                    std::span<const kernels::LookupTable> tables,
                    const StackAttributes& attributes) {
  // A number in the data of a device, as its ids are: another one may have 1.
  if (lookup.num_minibatches != 1) {
    return InvalidArgument("num_minibatches is ", lookup.num_minibatches,
                           ", expected 1: raw ids have no more.");
  }
  JTE_ASSIGN_OR_RETURN(const auto quantization,
                       ReadQuantization(lookup.quantization));
  // Owns the row splits that its features, and then the plan, are views of.
  JTE_ASSIGN_OR_RETURN(auto raw_ids,
                       ReadFeatures(operands, attributes.features));
  // There are no buffers, so any number of cells will do.
  JTE_ASSIGN_OR_RETURN(const auto plan,
                       PlanRawIds(attributes, std::move(raw_ids.features),
                                  kAlignment * attributes.num_sc_per_device));
  PreparePages(lookup.table, lookup.activations, executor);
  return kernels::LookupIds(
      plan, tables, lookup.table.num_rows / attributes.num_sc_per_device,
      lookup.activations.dim, quantization, lookup.activations.values,
      executor);
}

// The same. With keeps_errors what is wrong is recorded and is no error.
Result<void> LookUpOrRecord(Executor& executor, const Lookup& lookup,
                            const xffi::RemainingArgs& operands,
                            std::span<const kernels::LookupTable> tables,
                            const StackAttributes& attributes, int32_t device) {
  auto done =
      CatchOutOfMemory([&executor, &lookup, &operands, tables, &attributes] {
        return LookUp(executor, lookup, operands, tables, attributes);
      });
  if (done || !lookup.keeps_errors) return done;
  RecordFailureOf(device, attributes.global_device_count, done.error().message);
  FillWithNaN(lookup.activations);
  return {};
}

Result<void> OnOneDevice(Executor& executor, const xffi::AnyBuffer& table,
                         const IntScalar& num_minibatches,
                         const xffi::RemainingArgs& operands,
                         const xffi::AnyBuffer& result, Doubles quantization,
                         bool keeps_errors, const StackAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto lookup,
                       ReadLookup(table, num_minibatches, result, quantization,
                                  keeps_errors, attributes));
  return LookUpOrRecord(executor, lookup, operands, {&lookup.table.rows, 1},
                        attributes, /*device=*/0);
}

// What a device has for the others, if they look up from ids.
Published PublishedTable(const xffi::AnyBuffer& table, int64_t num_devices) {
  Published published = {};
  published.rows = BytesOf(table);
  published.geometry.num_devices = num_devices;
  return published;
}

Result<void> OnOneOfDevices(Executor& all_threads, const xffi::AnyBuffer& table,
                            const IntScalar& num_minibatches,
                            const WordsByDevice& records,
                            const IntScalar& device,
                            const xffi::RemainingArgs& operands,
                            const xffi::AnyBuffer& result, const Words& outcome,
                            Doubles quantization, bool keeps_errors,
                            const StackAttributes& attributes) {
  DeviceExecutor executor(all_threads, attributes.global_device_count);
  // Wrong in the program, hence on every device.
  if (std::ssize(ToSpan<uint32_t>(outcome)) != kRecordWords) {
    return InvalidArgument("A record has ", outcome.element_count(),
                           " words, expected ", kRecordWords, ".");
  }
  JTE_ASSIGN_OR_RETURN(const auto lookup,
                       ReadLookup(table, num_minibatches, result, quantization,
                                  keeps_errors, attributes));
  const Published own = PublishedTable(table, attributes.global_device_count);
  JTE_ASSIGN_OR_RETURN(const auto tables,
                       ReadTables(records, lookup.table, own));
  // Wrong in the data of this device, perhaps.
  const auto done = LookUpOrRecord(executor, lookup, operands, tables,
                                   attributes, *device.typed_data());
  const DeviceRecord record =
      done ? MakeRecord(own) : MakeErrorRecord(done.error().message);
  std::memcpy(outcome.typed_data(), &record, sizeof(record));
  return {};
}

template <typename... Attributes>
xffi::Error Handler(xffi::ThreadPool pool, xffi::AnyBuffer table,
                    IntScalar num_minibatches, xffi::RemainingArgs operands,
                    xffi::Result<xffi::AnyBuffer> activations,
                    Doubles quantization, bool keeps_errors,
                    Attributes... attributes) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(OnOneDevice, executor, table, num_minibatches, operands,
                    *activations, quantization, keeps_errors,
                    StackAttributes::Of(attributes...));
}

template <typename... Attributes>
xffi::Error HandlerOfDevices(xffi::ThreadPool pool, xffi::AnyBuffer table,
                             IntScalar num_minibatches, WordsByDevice records,
                             IntScalar device, xffi::RemainingArgs operands,
                             xffi::Result<xffi::AnyBuffer> activations,
                             xffi::Result<Words> outcome, Doubles quantization,
                             bool keeps_errors, Attributes... attributes) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(OnOneOfDevices, executor, table, num_minibatches, records,
                    device, operands, *activations, *outcome, quantization,
                    keeps_errors, StackAttributes::Of(attributes...));
}

Result<void> PublishTable(const xffi::AnyBuffer& table, const Words& words,
                          int64_t num_devices) {
  if (std::ssize(ToSpan<uint32_t>(words)) != kRecordWords) {
    return InvalidArgument("A record has ", words.element_count(),
                           " words, expected ", kRecordWords, ".");
  }
  const DeviceRecord record = MakeRecord(PublishedTable(table, num_devices));
  std::memcpy(words.typed_data(), &record, sizeof(record));
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupIdsCpu, [](auto... decoded) { return Handler(decoded...); },
    WithStackAttributes(xffi::Ffi::Bind()
                            .Ctx<xffi::ThreadPool>()
                            .Arg<xffi::AnyBuffer>()  // table
                            .Arg<IntScalar>()        // num_minibatches
                            .RemainingArgs()         // as in raw_id_operands.h
                            .Ret<xffi::AnyBuffer>()  // activations
                            .Attr<Doubles>("quantization")
                            .Attr<bool>("keeps_errors")));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteLookupIdsOfDevicesCpu,
    [](auto... decoded) { return HandlerOfDevices(decoded...); },
    WithStackAttributes(xffi::Ffi::Bind()
                            .Ctx<xffi::ThreadPool>()
                            .Arg<xffi::AnyBuffer>()  // table
                            .Arg<IntScalar>()        // num_minibatches
                            .Arg<WordsByDevice>()    // records
                            .Arg<IntScalar>()        // number of the device
                            .RemainingArgs()         // as in raw_id_operands.h
                            .Ret<xffi::AnyBuffer>()  // activations
                            .Ret<Words>()            // record
                            .Attr<Doubles>("quantization")
                            .Attr<bool>("keeps_errors")));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JtePublishTableCpu, kHandler<PublishTable>,
                              xffi::Ffi::Bind()
                                  .Arg<xffi::AnyBuffer>()  // table
                                  .Ret<Words>()            // record
                                  .Attr<int64_t>("num_devices"));

}  // namespace jte::ffi
