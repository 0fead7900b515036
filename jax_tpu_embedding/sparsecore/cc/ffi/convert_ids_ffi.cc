// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_convert_ids_cpu": raw ids of one stack on one device to buffers,
// inside a compiled program. The work is convert/converter.h.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/ieee_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/raw_id_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

Result<void> ConvertIds(Executor& executor, const xffi::RemainingArgs& operands,
                        const convert::CsrBuffers& buffers,
                        std::string_view combiner,
                        std::string_view feature_stacking_strategy,
                        const FeatureAttributes& attributes,
                        int64_t global_device_count,
                        int64_t num_sc_per_device) {
  const Topology topology = {.local_device_count = 1,
                             .global_device_count = global_device_count,
                             .num_sc_per_device = num_sc_per_device};
  JTE_RETURN_IF_ERROR(convert::CheckTopology(topology));
  JTE_ASSIGN_OR_RETURN(const auto strategy,
                       ParseFeatureStackingStrategy(feature_stacking_strategy));
  // Owns the row splits that its features, and then the plan, are views of.
  JTE_ASSIGN_OR_RETURN(auto raw_ids, ReadFeatures(operands, attributes));

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
  constexpr int64_t kNoLimit = std::numeric_limits<int32_t>::max();
  convert::StackSpec spec = {.name = raw_ids.features.front().name,
                             .combiner = std::string(combiner),
                             .max_ids_per_partition = kNoLimit,
                             .max_unique_ids_per_partition = kNoLimit};
  JTE_ASSIGN_OR_RETURN(
      const auto plan,
      convert::PlanStack(std::move(spec), num_cells,
                         std::move(raw_ids.features), topology, strategy));
  JTE_RETURN_IF_ERROR(convert::Convert({&plan, 1}, {.topology = topology},
                                       {&buffers, 1}, executor, nullptr));
  return {};
}

// Says what is wrong with the ids in the buffers, if `keeps_errors`.
Result<void> ConvertIdsOrKeepError(bool keeps_errors, Executor& executor,
                                   const xffi::RemainingArgs& operands,
                                   const convert::CsrBuffers& buffers,
                                   std::string_view combiner,
                                   std::string_view feature_stacking_strategy,
                                   const FeatureAttributes& attributes,
                                   int64_t global_device_count,
                                   int64_t num_sc_per_device) {
  auto converted = CatchOutOfMemory([&executor, &operands, &buffers, combiner,
                                     feature_stacking_strategy, &attributes,
                                     global_device_count, num_sc_per_device] {
    return ConvertIds(executor, operands, buffers, combiner,
                      feature_stacking_strategy, attributes,
                      global_device_count, num_sc_per_device);
  });
  if (converted || !keeps_errors || buffers.row_pointers.empty()) {
    return converted;
  }
  WriteFailure(converted.error().message, buffers);
  return {};
}

xffi::Error Handler(
    xffi::ThreadPool pool, xffi::RemainingArgs operands,
    xffi::Result<IntVector> row_pointers, xffi::Result<IntVector> embedding_ids,
    xffi::Result<IntVector> sample_ids, xffi::Result<FloatVector> gains,
    std::string_view combiner, std::string_view feature_stacking_strategy,
    int64_t global_device_count, int64_t num_sc_per_device,
    std::string_view feature_names, std::string_view out_of_range_ids,
    std::string_view non_finite_weights, xffi::Span<const int64_t> row_offsets,
    xffi::Span<const int64_t> col_offsets, xffi::Span<const int64_t> col_shifts,
    xffi::Span<const int64_t> vocabulary_sizes,
    xffi::Span<const int64_t> is_ragged, xffi::Span<const int64_t> has_weights,
    bool keeps_errors) {
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
      combiner, feature_stacking_strategy,
      FeatureAttributes{.names = feature_names,
                        .out_of_range_ids = out_of_range_ids,
                        .non_finite_weights = non_finite_weights,
                        .row_offsets = row_offsets,
                        .col_offsets = col_offsets,
                        .col_shifts = col_shifts,
                        .vocabulary_sizes = vocabulary_sizes,
                        .is_ragged = is_ragged,
                        .has_weights = has_weights},
      global_device_count, num_sc_per_device);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteConvertIdsCpu, Handler,
    xffi::Ffi::Bind()
        .Ctx<xffi::ThreadPool>()
        .RemainingArgs()     // of each feature, as in raw_id_operands.h
        .Ret<IntVector>()    // row_pointers
        .Ret<IntVector>()    // embedding_ids
        .Ret<IntVector>()    // sample_ids
        .Ret<FloatVector>()  // gains
        .Attr<std::string_view>("combiner")
        .Attr<std::string_view>("feature_stacking_strategy")
        .Attr<int64_t>("global_device_count")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<std::string_view>("feature_names")
        .Attr<std::string_view>("out_of_range_ids")
        .Attr<std::string_view>("non_finite_weights")
        .Attr<xffi::Span<const int64_t>>("row_offsets")
        .Attr<xffi::Span<const int64_t>>("col_offsets")
        .Attr<xffi::Span<const int64_t>>("col_shifts")
        .Attr<xffi::Span<const int64_t>>("vocabulary_sizes")
        .Attr<xffi::Span<const int64_t>>("is_ragged")
        .Attr<xffi::Span<const int64_t>>("has_weights")
        .Attr<bool>("keeps_errors"));

}  // namespace jte::ffi
