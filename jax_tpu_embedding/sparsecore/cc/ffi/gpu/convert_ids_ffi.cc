// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_convert_ids_cuda": raw ids of one stack on one device to buffers.
// Operands and attributes are those of jte_convert_ids_cpu; what is wrong with
// ids is no error here (gpu/occurrences.h).

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/on_stream.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/plans.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/gpu/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/raw_id_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/convert_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Result<gpu::IdType> ToIdType(const FeatureOperands& feature) {
  switch (feature.ids.element_type()) {
    case xffi::DataType::S32:
      return gpu::IdType::kInt32;
    case xffi::DataType::S64:
      return gpu::IdType::kInt64;
    case xffi::DataType::U32:
      return gpu::IdType::kUint32;
    case xffi::DataType::U64:
      return gpu::IdType::kUint64;
    default:
      return InvalidArgument("Feature '", feature.name,
                             "': ids must be int32, int64, uint32 or uint64.");
  }
}

// Where the samples of features go: raw_ids.sample_places of Python.
Result<void> PlaceSamples(const StackAttributes& attributes,
                          std::span<const FeatureOperands> operands,
                          std::span<gpu::RawIds> features) {
  JTE_ASSIGN_OR_RETURN(
      const auto strategy,
      ParseFeatureStackingStrategy(attributes.feature_stacking_strategy));
  int64_t samples_per_device = 0;
  for (const auto& feature : features) {
    samples_per_device += feature.num_samples;
  }
  const Topology topology = attributes.topology();
  for (size_t f = 0; f < features.size(); ++f) {
    gpu::RawIds& feature = features[f];
    const int64_t row_offset = attributes.features.row_offsets[f];
    if (strategy == FeatureStackingStrategy::kSplitThenStack) {
      feature.samples_before = 0;
      feature.samples_per_sc = feature.num_samples / topology.num_sc_per_device;
      feature.first_sample_id = row_offset / topology.num_scs();
    } else {
      feature.samples_before = row_offset / topology.global_device_count;
      feature.samples_per_sc = samples_per_device / topology.num_sc_per_device;
      feature.first_sample_id = 0;
    }
    const int64_t end = feature.samples_before + feature.num_samples;
    if (row_offset < 0 ||
        end > feature.samples_per_sc * topology.num_sc_per_device) {
      return InvalidArgument(
          "Feature '", operands[f].name, "': sample ", end - 1,
          " of the device is beyond those of its ", topology.num_sc_per_device,
          " SparseCores, which have ", feature.samples_per_sc,
          " each. Use a number of samples that they can share equally.");
    }
  }
  return {};
}

Result<std::vector<gpu::RawIds>> ReadRawIds(const xffi::RemainingArgs& operands,
                                            const StackAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto features,
                       ReadOperands(operands, attributes.features));
  const int64_t num_shards = attributes.topology().num_scs();
  std::vector<gpu::RawIds> result;
  for (size_t f = 0; f < features.size(); ++f) {
    const FeatureOperands& feature = features[f];
    const int64_t vocabulary_size = attributes.features.vocabulary_sizes[f];
    const int64_t first_row = attributes.features.col_offsets[f] / num_shards;
    const int64_t shift = attributes.features.col_shifts[f];
    if (vocabulary_size <= 0 || first_row < 0 || shift < 0 ||
        first_row + (vocabulary_size - 1) / num_shards >=
            kMaxInt32 / num_shards) {
      return InvalidArgument(
          "Feature '", feature.name, "': vocabulary_size=", vocabulary_size,
          " at row ", first_row, " of ", num_shards, " shards, rotated by ",
          shift, ", has rows that are not of int32.");
    }
    JTE_ASSIGN_OR_RETURN(const auto type, ToIdType(feature));
    result.push_back(
        {.ids = feature.ids.untyped_data(),
         .type = type,
         .weights =
             feature.weights ? feature.weights->typed_data<float>() : nullptr,
         .row_splits = feature.row_splits
                           ? feature.row_splits->typed_data<int32_t>()
                           : nullptr,
         .valency = feature.row_splits ? 0 : feature.ids.dimensions()[1],
         .num_ids = feature.num_ids(),
         .num_samples = feature.num_samples(),
         .vocabulary_size = vocabulary_size,
         .id_policy = feature.id_policy,
         .weight_policy = feature.weight_policy,
         .samples_before = 0,
         .samples_per_sc = 0,
         .first_sample_id = 0,
         .first_row = first_row,
         .rotation = shift % num_shards});
  }
  JTE_RETURN_IF_ERROR(PlaceSamples(attributes, features, result));
  return result;
}

// The most ids that a SparseCore can have: those of a ragged feature may all be
// of one sample.
int64_t MaxIdsPerSc(std::span<const gpu::RawIds> features,
                    int64_t num_sc_per_device) {
  int64_t most = 0;
  for (int64_t sc = 0; sc < num_sc_per_device; ++sc) {
    int64_t num_ids = 0;
    for (const auto& feature : features) {
      const int64_t begin =
          sc * feature.samples_per_sc - feature.samples_before;
      const int64_t num_samples =
          std::min(begin + feature.samples_per_sc, feature.num_samples) -
          std::max<int64_t>(begin, 0);
      if (num_samples <= 0) continue;
      num_ids += feature.row_splits == nullptr ? feature.valency * num_samples
                                               : feature.num_ids;
    }
    most = std::max(most, num_ids);
  }
  return most;
}

gpu::ConversionScratch TakeConversionScratch(ScratchCutter& scratch,
                                             int64_t num_ids,
                                             int64_t num_samples,
                                             int64_t num_blocks,
                                             int64_t num_features) {
  return {.occurrences = {.blocks = scratch.Take<int32_t>(num_ids),
                          .rows = scratch.Take<int32_t>(num_ids),
                          .samples = scratch.Take<int32_t>(num_ids),
                          .gains = scratch.Take<float>(num_ids),
                          .keys = scratch.Take<int32_t>(num_ids),
                          .order = scratch.Take<int32_t>(num_ids)},
          .other_keys = scratch.Take<int32_t>(num_ids),
          .other_order = scratch.Take<int32_t>(num_ids),
          .factors = scratch.Take<float>(num_samples),
          .first_entries = scratch.Take<int32_t>(num_blocks + 1),
          .cells = scratch.Take<int32_t>(num_blocks),
          .ends = scratch.Take<int32_t>(num_blocks),
          .errors = {.any = scratch.Take<int32_t>(1),
                     .row_splits = scratch.Take<int32_t>(num_features)},
          .sort = TakeSort(scratch, std::max(num_ids, num_blocks))};
}

Result<gpu::ConversionGeometry> MakeConversionGeometry(
    std::span<const gpu::RawIds> features, int64_t num_row_pointers,
    int64_t num_cells, const StackAttributes& attributes) {
  JTE_ASSIGN_OR_RETURN(const auto combiner,
                       convert::ParseCombiner(attributes.combiner));
  const Topology topology = attributes.topology();
  const int64_t num_shards = topology.num_scs();
  const int64_t num_scs = topology.num_sc_per_device;
  int64_t rows_per_shard = 0;
  for (const auto& feature : features) {
    rows_per_shard = std::max(
        rows_per_shard,
        feature.first_row + (feature.vocabulary_size - 1) / num_shards + 1);
  }
  const int64_t max_ids = MaxIdsPerSc(features, num_scs);
  // raw_ids.cells_per_sc of Python.
  const int64_t needed = RoundUp(
      std::max<int64_t>(
          max_ids + (kAlignment - 1) * std::min(max_ids, num_shards), 1),
      kAlignment);
  const int64_t row_pointers =
      RowPointersPerDevice(topology, /*enable_minibatching=*/false);
  if (num_row_pointers != row_pointers || num_cells % num_scs != 0 ||
      num_cells / num_scs < needed || num_cells > kMaxInt32) {
    return InvalidArgument("convert_ids has ", num_row_pointers,
                           " row pointers and ", num_cells, " cells, expected ",
                           row_pointers, " and ", needed,
                           " or more for each of ", num_scs, " SparseCores.");
  }
  return gpu::ConversionGeometry{
      .combiner = combiner,
      .num_shards = num_shards,
      .num_sc_per_device = num_scs,
      .rows_per_shard = rows_per_shard,
      .row_pointers_per_block = row_pointers / num_scs,
      .cells_per_sc = num_cells / num_scs};
}

Result<void> ConvertIds(gpu::Stream stream, const xffi::RemainingArgs& operands,
                        const IntVector& row_pointers,
                        const IntVector& embedding_ids,
                        const IntVector& sample_ids, const FloatVector& gains,
                        const xffi::AnyBuffer& scratch_buffer,
                        bool keeps_errors, const StackAttributes& attributes) {
  JTE_RETURN_IF_ERROR(convert::CheckTopology(attributes.topology()));
  JTE_ASSIGN_OR_RETURN(const auto features, ReadRawIds(operands, attributes));
  const auto num_cells = static_cast<int64_t>(embedding_ids.element_count());
  JTE_ASSIGN_OR_RETURN(
      const auto geometry,
      MakeConversionGeometry(features,
                             static_cast<int64_t>(row_pointers.element_count()),
                             num_cells, attributes));
  if (static_cast<int64_t>(sample_ids.element_count()) != num_cells ||
      static_cast<int64_t>(gains.element_count()) != num_cells) {
    return InvalidArgument("embedding_ids, sample_ids and gains have ",
                           num_cells, ", ", sample_ids.element_count(), " and ",
                           gains.element_count(),
                           " cells, expected equal numbers.");
  }
  int64_t num_ids = 0;
  int64_t num_samples = 0;  // of all features
  for (const auto& feature : features) {
    num_ids += feature.num_ids;
    num_samples += feature.num_samples;
  }
  if (num_ids > kMaxInt32) {
    return InvalidArgument("convert_ids has ", num_ids, " ids, expected ",
                           kMaxInt32, " or less. Use smaller batches.");
  }
  const int64_t num_blocks = geometry.num_sc_per_device * geometry.num_shards;
  const auto num_features = static_cast<int64_t>(features.size());
  JTE_RETURN_IF_ERROR(CheckScratch(
      scratch_buffer,
      ConversionScratchBytes(num_ids, num_samples, num_blocks, num_features)));
  ScratchCutter scratch(scratch_buffer.untyped_data());
  return ToResult(gpu::ConvertIds(
      stream, features, geometry, keeps_errors ? kFailedConversion : 0,
      TakeConversionScratch(scratch, num_ids, num_samples, num_blocks,
                            num_features),
      {.row_pointers = row_pointers.typed_data(),
       .embedding_ids = embedding_ids.typed_data(),
       .sample_ids = sample_ids.typed_data(),
       .gains = gains.typed_data()}));
}

constexpr auto kConvertIds =
    [](gpu::Stream stream, const xffi::RemainingArgs& operands,
       const IntVector& row_pointers, const IntVector& embedding_ids,
       const IntVector& sample_ids, const FloatVector& gains,
       const xffi::AnyBuffer& scratch, bool keeps_errors,
       const auto&... attributes) {
      return ConvertIds(stream, operands, row_pointers, embedding_ids,
                        sample_ids, gains, scratch, keeps_errors,
                        StackAttributes::Of(attributes...));
    };

}  // namespace

int64_t ConversionScratchBytes(int64_t num_ids, int64_t num_samples,
                               int64_t num_blocks, int64_t num_features) {
  ScratchCutter counter;
  TakeConversionScratch(counter, num_ids, num_samples, num_blocks,
                        num_features);
  return counter.num_bytes();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteConvertIdsCuda, kOnStream<kConvertIds>,
    WithStackAttributes(BindOnStream()
                            .RemainingArgs()         // as in raw_id_operands.h
                            .Ret<IntVector>()        // row_pointers
                            .Ret<IntVector>()        // embedding_ids
                            .Ret<IntVector>()        // sample_ids
                            .Ret<FloatVector>()      // gains
                            .Ret<xffi::AnyBuffer>()  // scratch
                            .Attr<bool>("keeps_errors")),
    {xffi::Traits::kCmdBufferCompatible});

}  // namespace jte::ffi
