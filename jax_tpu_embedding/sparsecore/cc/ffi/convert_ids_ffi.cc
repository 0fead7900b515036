// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_convert_ids_cpu": raw ids of one stack on one device to buffers,
// inside a compiled program. The work is convert/converter.h.

#include <iterator>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/ieee_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/raw_id_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

Result<void> ConvertIds(Executor& executor, const xffi::RemainingArgs& operands,
                        const convert::CsrBuffers& buffers,
                        const StackAttributes& attributes) {
  const Topology topology = attributes.topology();
  JTE_RETURN_IF_ERROR(convert::CheckTopology(topology));
  // Owns the row splits that its features, and then the plan, are views of.
  JTE_ASSIGN_OR_RETURN(auto raw_ids,
                       ReadFeatures(operands, attributes.features));

  const auto num_cells = std::ssize(buffers.gains);
  const auto num_row_pointers =
      RowPointersPerDevice(topology, /*enable_minibatching=*/false);
  if (std::ssize(buffers.row_pointers) != num_row_pointers ||
      std::ssize(buffers.embedding_ids) != num_cells ||
      std::ssize(buffers.sample_ids) != num_cells) {
    return InvalidArgument("convert_ids must have ", num_row_pointers,
                           " row pointers and three buffers of one size, got ",
                           buffers.row_pointers.size(), ", ",
                           buffers.embedding_ids.size(), ", ",
                           buffers.sample_ids.size(), " and ", num_cells, ".");
  }
  // The buffers are sized for any ids of these shapes, so there is no limit.
  JTE_ASSIGN_OR_RETURN(
      const auto plan,
      PlanRawIds(attributes, std::move(raw_ids.features), num_cells));
  JTE_RETURN_IF_ERROR(convert::Convert({&plan, 1}, {.topology = topology},
                                       {&buffers, 1}, executor, nullptr));
  return {};
}

// Says what is wrong with the ids in the buffers, if `keeps_errors`.
Result<void> ConvertIdsOrKeepError(bool keeps_errors, Executor& executor,
                                   const xffi::RemainingArgs& operands,
                                   const convert::CsrBuffers& buffers,
                                   const StackAttributes& attributes) {
  auto converted =
      CatchOutOfMemory([&executor, &operands, &buffers, &attributes] {
        return ConvertIds(executor, operands, buffers, attributes);
      });
  if (converted || !keeps_errors || buffers.row_pointers.empty()) {
    return converted;
  }
  WriteFailure(converted.error().message, buffers);
  return {};
}

template <typename... Attributes>
xffi::Error Handler(xffi::ThreadPool pool, xffi::RemainingArgs operands,
                    xffi::Result<IntVector> row_pointers,
                    xffi::Result<IntVector> embedding_ids,
                    xffi::Result<IntVector> sample_ids,
                    xffi::Result<FloatVector> gains, bool keeps_errors,
                    Attributes... attributes) {
  ThreadPoolExecutor pool_executor(pool);
  IeeeExecutor executor(pool_executor);
  return RunHandler(
      ConvertIdsOrKeepError, keeps_errors, executor, operands,
      convert::CsrBuffers{.row_pointers = ToSpan<int32_t>(*row_pointers),
                          .embedding_ids = ToSpan<int32_t>(*embedding_ids),
                          .sample_ids = ToSpan<int32_t>(*sample_ids),
                          .gains = ToSpan<float>(*gains),
                          // No NaN, so that jax_debug_nans finds others.
                          .padding_gain = 0.0f},
      StackAttributes::Of(attributes...));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteConvertIdsCpu, [](auto... decoded) { return Handler(decoded...); },
    WithStackAttributes(xffi::Ffi::Bind()
                            .Ctx<xffi::ThreadPool>()
                            .RemainingArgs()     // as in raw_id_operands.h
                            .Ret<IntVector>()    // row_pointers
                            .Ret<IntVector>()    // embedding_ids
                            .Ret<IntVector>()    // sample_ids
                            .Ret<FloatVector>()  // gains
                            .Attr<bool>("keeps_errors")));

}  // namespace jte::ffi
