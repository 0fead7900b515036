// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_check_batch_cpu": whether the buffers of one stack on one device
// can be looked up. If not, it records why (recorded_failures.h), and the row
// pointers that it returns are those for which a lookup gives NaN
// (failed_buffers.h).

#include <algorithm>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/recorded_failures.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using BoolVector = xffi::BufferR1<xffi::PRED>;

Result<void> CheckBatch(Executor& all_threads, const CooOperands& coo,
                        const IntScalar& device, const IntVector& result,
                        const BoolVector& has_failed, int64_t num_devices,
                        int64_t num_sc_per_device, bool enable_minibatching,
                        int64_t rows_per_device, int64_t batch_size) {
  DeviceExecutor executor(all_threads, num_devices);
  // Wrong in the program.
  const auto checked_pointers = ToSpan<int32_t>(result);
  if (checked_pointers.empty() || has_failed.element_count() != 1 ||
      checked_pointers.size() != coo.row_pointers.element_count()) {
    return InvalidArgument(
        "check_batch must have as many row pointers as it is given, at least "
        "one, and one more result, got ",
        checked_pointers.size(), " for ", coo.row_pointers.element_count(),
        ", and ", has_failed.element_count(), ".");
  }
  JTE_ASSIGN_OR_RETURN(auto geometry,
                       MakeGeometry(num_sc_per_device, enable_minibatching,
                                    *coo.num_minibatches.typed_data(),
                                    rows_per_device, batch_size));
  geometry.num_devices = num_devices;
  // Wrong in the data.
  const auto buffers = ReadValidBuffers(executor, coo, geometry);
  *has_failed.typed_data() = !buffers;
  if (buffers) {
    std::ranges::copy(buffers->row_pointers, checked_pointers.begin());
  } else {
    RecordFailureOf(*device.typed_data(), num_devices, buffers.error().message);
    MarkAsRecorded(checked_pointers);
  }
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteCheckBatchCpu, kCooOnPool<CheckBatch>,
                              BindCooOnPool()
                                  .Arg<IntScalar>()   // number of the device
                                  .Ret<IntVector>()   // row_pointers
                                  .Ret<BoolVector>()  // has_failed
                                  .Attr<int64_t>("num_devices")
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching")
                                  .Attr<int64_t>("rows_per_device")
                                  .Attr<int64_t>("batch_size"));

}  // namespace jte::ffi
