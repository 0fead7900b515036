// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_publish_cpu": a device's record for the others, device_records.h.
// Target "jte_split_records_cpu": the records of each stack, of those of all.
// Slices would be as much; XLA compiles a kernel for each, which takes 20 ms.
// Target "jte_hold_cpu": does nothing. Its results are its first operands; XLA
// keeps the others until the call, which is what it is for. It checks that what
// is held is what was published.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

// The buffers, once they are known to be valid; or to be those of a batch that
// failed, whose lookup gives NaN and reads none.
Result<kernels::CooBuffers> ReadBuffers(Executor& executor,
                                        const CooOperands& coo,
                                        const kernels::CooGeometry& geometry) {
  const auto buffers = ToCooBuffers(coo);
  if (buffers && IsRecordedFailure(*buffers)) return *buffers;
  return ReadValidBuffers(executor, coo, geometry);
}

Result<void> Publish(Executor& all_threads, const CooOperands& coo,
                     const xffi::AnyBuffer& rows, const Words& words,
                     int64_t num_devices, int64_t num_sc_per_device,
                     bool enable_minibatching, int64_t rows_per_device,
                     int64_t batch_size) {
  DeviceExecutor executor(all_threads, num_devices);
  // Wrong in the program, hence on every device.
  if (std::ssize(ToSpan<uint32_t>(words)) != kRecordWords) {
    return InvalidArgument("A record has ", words.element_count(),
                           " words, expected ", kRecordWords, ".");
  }
  JTE_ASSIGN_OR_RETURN(auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    rows_per_device, batch_size));
  geometry.num_devices = num_devices;
  // Wrong in the data of this device, perhaps.
  const auto buffers = CatchOutOfMemory([&executor, &coo, &geometry] {
    return ReadBuffers(executor, coo, geometry);
  });
  const DeviceRecord record = buffers
                                  ? MakeRecord({.buffers = *buffers,
                                                .rows = BytesOf(rows),
                                                .geometry = geometry})
                                  : MakeErrorRecord(buffers.error().message);
  std::memcpy(words.typed_data(), &record, sizeof(record));
  return {};
}

Result<void> SplitRecords(
    const xffi::BufferR3<xffi::U32>& together,  // [devices, stacks, words]
    xffi::RemainingRets rets) {
  const auto dimensions = together.dimensions();
  const int64_t num_devices = dimensions[0];
  const int64_t num_words = dimensions[2];
  if (dimensions[1] != static_cast<int64_t>(rets.size())) {
    return InvalidArgument("There are records of ", dimensions[1],
                           " stacks, and ", rets.size(), " results.");
  }
  const uint32_t* source = together.typed_data();
  for (int64_t device = 0; device < num_devices; ++device) {
    for (size_t k = 0; k < rets.size(); ++k, source += num_words) {
      auto ret = rets.get<WordsByDevice>(k);
      if (ret.has_error() || (*ret)->dimensions()[0] != num_devices ||
          (*ret)->dimensions()[1] != num_words) {
        return InvalidArgument("Result ", k, " must be uint32 of shape [",
                               num_devices, ", ", num_words, "].");
      }
      std::copy_n(source, num_words, (*ret)->typed_data() + device * num_words);
    }
  }
  return {};
}

// What one stack has published is still where `args` from number `first` on
// are.
Result<void> CheckHeld(xffi::RemainingArgs args, size_t first, int64_t num_held,
                       const DeviceRecord& own) {
  const void* const published[] = {
      own.rows, own.row_pointers, own.embedding_ids, own.sample_ids, own.gains};
  if (num_held < 0 || num_held > std::ssize(published)) {
    return InvalidArgument("A stack holds ", num_held, " operands, expected 0 ",
                           "to ", std::ssize(published), ".");
  }
  for (int64_t k = 0; k < num_held; ++k) {
    const auto held = args.get<xffi::AnyBuffer>(first + k);
    if (held.has_error() || held->untyped_data() != published[k]) {
      return FailedPrecondition(
          "Operand ", first + k,
          " is not what the other devices read: XLA has made a copy of it. "
          "Give it the default layout.");
    }
  }
  return {};
}

Result<void> Hold(xffi::RemainingArgs args, xffi::RemainingRets rets,
                  int64_t num_devices, std::span<const int64_t> num_held) {
  for (size_t k = 0; k < rets.size(); ++k) {
    const auto arg = args.get<xffi::AnyBuffer>(k);
    auto ret = rets.get<xffi::AnyBuffer>(k);
    if (arg.has_error() || ret.has_error() ||
        arg->untyped_data() != (*ret)->untyped_data()) {
      return FailedPrecondition("Operand ", k,
                                " and its result are different buffers. Alias "
                                "them in the custom call.");
    }
  }
  const auto device = args.get<IntScalar>(rets.size());
  if (device.has_error()) {
    return InvalidArgument("Operand ", rets.size(), ", after ", rets.size(),
                           " values, must be the number of the device, int32.");
  }
  const int32_t number = *device->typed_data();
  if (number < 0 || number >= num_devices) {
    return InvalidArgument("The device has number ", number, " of ",
                           num_devices, " of the axis.");
  }
  size_t k = rets.size() + 1;
  for (const int64_t count : num_held) {
    const auto words = args.get<WordsByDevice>(k);
    if (words.has_error()) {
      return InvalidArgument("Operand ", k, " of ", args.size(),
                             " must be the records of a stack, uint32 of rank "
                             "2.");
    }
    JTE_ASSIGN_OR_RETURN(const auto records, ReadRecords(*words, num_devices));
    JTE_RETURN_IF_ERROR(CheckHeld(args, k + 1, count, records[number]));
    k += 1 + count;
  }
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JtePublishCpu, kCooOnPool<Publish>,
    BindCooOnPool()
        .Arg<xffi::AnyBuffer>()  // rows that the others read
        .Ret<Words>()            // record
        .Attr<int64_t>("num_devices")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("enable_minibatching")
        .Attr<int64_t>("rows_per_device")
        .Attr<int64_t>("batch_size"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteSplitRecordsCpu, kHandler<SplitRecords>,
    xffi::Ffi::Bind()
        .Arg<xffi::BufferR3<xffi::U32>>()  // records of all stacks
        .RemainingRets());                 // those of each

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteHoldCpu, kHandler<Hold>,
    xffi::Ffi::Bind()
        .RemainingArgs()  // values, device; for each stack records, and
                          // nothing, rows, or rows and buffers; what else is
                          // waited for
        .RemainingRets()  // values
        .Attr<int64_t>("num_devices")
        .Attr<xffi::Span<const int64_t>>("num_held"));

}  // namespace jte::ffi
