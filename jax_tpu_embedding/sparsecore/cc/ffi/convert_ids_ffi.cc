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
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/error_to_ffi.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "xla/ffi/api/ffi.h"

namespace jte {
namespace {

namespace ffi = xla::ffi;

// What the features of the stack are, as attributes of the call.
struct FeatureAttributes {
  std::string_view names;  // one per line
  ffi::Span<const int64_t> row_offsets;
  ffi::Span<const int64_t> col_offsets;
  ffi::Span<const int64_t> col_shifts;
  ffi::Span<const int64_t> vocabulary_sizes;

  size_t size() const { return row_offsets.size(); }
};

std::vector<std::string> SplitLines(std::string_view lines) {
  std::vector<std::string> result;
  while (true) {
    const size_t end = lines.find('\n');
    result.emplace_back(lines.substr(0, end));
    if (end == std::string_view::npos) return result;
    lines.remove_prefix(end + 1);
  }
}

// The elements of operand `i`, which must be a matrix of the type.
template <ffi::DataType dtype>
Result<ffi::BufferR2<dtype>> ReadMatrix(const ffi::RemainingArgs& operands,
                                        size_t i) {
  const auto matrix = operands.get<ffi::BufferR2<dtype>>(i);
  if (matrix) return *matrix;
  return InvalidArgument("Operand ", i,
                         " of convert_ids: ", matrix.error().message());
}

Result<std::vector<FeatureInput>> ReadFeatures(
    const ffi::RemainingArgs& operands, const FeatureAttributes& attributes,
    bool has_weights) {
  const std::vector<std::string> names = SplitLines(attributes.names);
  const size_t num_features = attributes.size();
  if (num_features == 0 || names.size() != num_features ||
      attributes.col_offsets.size() != num_features ||
      attributes.col_shifts.size() != num_features ||
      attributes.vocabulary_sizes.size() != num_features ||
      operands.size() != num_features * (has_weights ? 2 : 1)) {
    return InvalidArgument(
        "convert_ids needs a name, a row offset, a column offset and shift, a "
        "vocabulary size, ids and, if any, weights of each feature, got ",
        names.size(), ", ", num_features, ", ", attributes.col_offsets.size(),
        ", ", attributes.col_shifts.size(), ", ",
        attributes.vocabulary_sizes.size(), ", and ", operands.size(),
        " operands.");
  }
  std::vector<FeatureInput> features;
  for (size_t f = 0; f < num_features; ++f) {
    const auto ids = ReadMatrix<ffi::S32>(operands, f);
    if (!ids) return std::unexpected(ids.error());
    FeatureInput feature = {
        .name = names[f],
        .vocabulary_size = attributes.vocabulary_sizes[f],
        .transform = {.row_offset = attributes.row_offsets[f],
                      .col_offset = attributes.col_offsets[f],
                      .col_shift = attributes.col_shifts[f]},
        .batch = {.ids = ToSpan<const int32_t>(*ids),
                  .num_samples = ids->dimensions()[0],
                  .valency = ids->dimensions()[1]}};
    if (has_weights) {
      const auto weights = ReadMatrix<ffi::F32>(operands, num_features + f);
      if (!weights) return std::unexpected(weights.error());
      feature.batch.weights = ToSpan<const float>(*weights);
    }
    features.push_back(std::move(feature));
  }
  return features;
}

Result<void> ConvertIds(Executor& executor, const ffi::RemainingArgs& operands,
                        const CsrBuffers& buffers, std::string_view combiner,
                        const FeatureAttributes& attributes,
                        int64_t global_device_count, int64_t num_sc_per_device,
                        bool has_weights) {
  const Topology topology = {.local_device_count = 1,
                             .global_device_count = global_device_count,
                             .num_sc_per_device = num_sc_per_device};
  if (auto checked = CheckTopology(topology); !checked) return checked;
  auto features = ReadFeatures(operands, attributes, has_weights);
  if (!features) return std::unexpected(features.error());

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
  StackSpec spec = {.name = features->front().name,
                    .combiner = std::string(combiner),
                    .max_ids_per_partition = kNoLimit,
                    .max_unique_ids_per_partition = kNoLimit};
  const auto plan =
      PlanStack(std::move(spec), num_cells, *std::move(features), topology);
  if (!plan) return std::unexpected(plan.error());
  const auto stats = Convert({&*plan, 1}, /*allow_id_dropping=*/false,
                             {&buffers, 1}, executor);
  if (!stats) return std::unexpected(stats.error());
  return {};
}

ffi::Error Handler(
    ffi::ThreadPool pool, ffi::RemainingArgs operands,
    ffi::Result<IntVector> row_pointers, ffi::Result<IntVector> embedding_ids,
    ffi::Result<IntVector> sample_ids, ffi::Result<FloatVector> gains,
    std::string_view combiner, std::string_view feature_names,
    ffi::Span<const int64_t> row_offsets, ffi::Span<const int64_t> col_offsets,
    ffi::Span<const int64_t> col_shifts,
    ffi::Span<const int64_t> vocabulary_sizes, int64_t global_device_count,
    int64_t num_sc_per_device, bool has_weights) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(ConvertIds, executor, operands,
                    CsrBuffers{.row_pointers = ToSpan<int32_t>(*row_pointers),
                               .embedding_ids = ToSpan<int32_t>(*embedding_ids),
                               .sample_ids = ToSpan<int32_t>(*sample_ids),
                               .gains = ToSpan<float>(*gains)},
                    combiner,
                    FeatureAttributes{.names = feature_names,
                                      .row_offsets = row_offsets,
                                      .col_offsets = col_offsets,
                                      .col_shifts = col_shifts,
                                      .vocabulary_sizes = vocabulary_sizes},
                    global_device_count, num_sc_per_device, has_weights);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteConvertIdsCpu, Handler,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .RemainingArgs()     // ids of each feature, then weights
        .Ret<IntVector>()    // row_pointers
        .Ret<IntVector>()    // embedding_ids
        .Ret<IntVector>()    // sample_ids
        .Ret<FloatVector>()  // gains
        .Attr<std::string_view>("combiner")
        .Attr<std::string_view>("feature_names")
        .Attr<ffi::Span<const int64_t>>("row_offsets")
        .Attr<ffi::Span<const int64_t>>("col_offsets")
        .Attr<ffi::Span<const int64_t>>("col_shifts")
        .Attr<ffi::Span<const int64_t>>("vocabulary_sizes")
        .Attr<int64_t>("global_device_count")
        .Attr<int64_t>("num_sc_per_device")
        .Attr<bool>("has_weights"));

}  // namespace jte
