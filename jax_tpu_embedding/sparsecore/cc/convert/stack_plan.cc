// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Bounds num_scs, and num_scs * num_sc_per_device, so that no size below
// overflows int64 and row pointers of a device, which are at most 64 times
// the latter, stay below 2^31.
constexpr int64_t kMaxPairsPerDevice = int64_t{1} << 24;

Result<void> CheckLimit(const StackSpec& spec, std::string_view name,
                        int64_t limit) {
  if (limit > 0 && limit <= kMaxInt32) return {};
  return InvalidArgument("Stack '", spec.name, "': ", name, " must be in [1, ",
                         kMaxInt32, "], got ", limit, ".");
}

}  // namespace

Result<void> CheckTopology(const Topology& topology) {
  for (const auto& [name, count] :
       {std::pair<std::string_view, int64_t>{"local_device_count",
                                             topology.local_device_count},
        {"global_device_count", topology.global_device_count},
        {"num_sc_per_device", topology.num_sc_per_device}}) {
    if (count <= 0 || count > kMaxPairsPerDevice) {
      return InvalidArgument(name, " must be greater than 0 and at most ",
                             kMaxPairsPerDevice, ", got ", count, ".");
    }
  }
  if (topology.global_device_count < topology.local_device_count) {
    return InvalidArgument(
        "global_device_count must be greater than or equal to "
        "local_device_count, got ",
        topology.global_device_count, " < ", topology.local_device_count, ".");
  }
  if (topology.num_scs() > kMaxPairsPerDevice / topology.num_sc_per_device) {
    return InvalidArgument(
        "global_device_count=", topology.global_device_count,
        " with num_sc_per_device=", topology.num_sc_per_device,
        " has more than ", kMaxPairsPerDevice,
        " partitions per device. Use fewer SparseCores.");
  }
  return {};
}

Result<int64_t> CooCellsPerDevice(const StackSpec& spec,
                                  const Topology& topology,
                                  bool enable_minibatching) {
  for (const auto& [name, limit] :
       {std::pair<std::string_view, int64_t>{"max_ids_per_partition",
                                             spec.max_ids_per_partition},
        {"max_unique_ids_per_partition", spec.max_unique_ids_per_partition}}) {
    JTE_RETURN_IF_ERROR(CheckLimit(spec, name, limit));
  }
  const int64_t max_cells = MaxCooCellsPerDevice(spec.max_ids_per_partition,
                                                 topology, enable_minibatching);
  int64_t cells = max_cells;
  if (spec.suggested_coo_buffer_size_per_device) {
    const int64_t suggestion = *spec.suggested_coo_buffer_size_per_device;
    JTE_RETURN_IF_ERROR(
        CheckLimit(spec, "suggested_coo_buffer_size_per_device", suggestion));
    cells = RoundUp(suggestion, kAlignment * topology.num_sc_per_device);
    if (cells > max_cells) {
      return InvalidArgument(
          "Stack '", spec.name,
          "': suggested_coo_buffer_size_per_device=", suggestion,
          ", rounded up to ", cells, " (a multiple of ", kAlignment,
          " * num_sc_per_device), is above ", max_cells,
          ", the most that max_ids_per_partition=", spec.max_ids_per_partition,
          " can fill. Lower it, or raise max_ids_per_partition.");
    }
  }
  if (cells >= kMaxInt32) {
    return InvalidArgument(
        "Stack '", spec.name, "': the COO buffer of a device would have ",
        cells, " cells, and must have fewer than ", kMaxInt32,
        ". Lower max_ids_per_partition=", spec.max_ids_per_partition,
        ", or set suggested_coo_buffer_size_per_device.");
  }
  return cells;
}

namespace {

// The limit of samples and offsets of a feature: more than any buffer has room
// for, and low enough that sums of them fit int64.
constexpr int64_t kMaxCount = int64_t{1} << 48;

template <typename... Parts>
std::unexpected<Error> FeatureError(const FeatureInput& feature,
                                    const Parts&... parts) {
  return InvalidArgument("Feature '", feature.name, "': ", parts...);
}

Result<void> CheckRowSplits(const FeatureInput& feature) {
  const InputBatch& batch = feature.batch;
  if (batch.num_samples < 0 || batch.num_samples > kMaxCount) {
    return FeatureError(feature, "cannot have ", batch.num_samples,
                        " samples.");
  }
  const auto& splits = batch.row_splits;
  if (splits.empty()) {
    if (batch.valency > kMaxInt32) {
      return FeatureError(feature, "its samples have ", batch.valency,
                          " ids each, and a sample can have at most ",
                          kMaxInt32, ". Pass ids of shape [samples, valency].");
    }
    int64_t num_ids = 0;
    if (batch.valency >= 0 &&
        !__builtin_mul_overflow(batch.num_samples, batch.valency, &num_ids) &&
        num_ids == batch.num_ids()) {
      return {};
    }
    return FeatureError(feature, batch.num_samples, " samples of ",
                        batch.valency, " ids cannot have ", batch.num_ids(),
                        " ids.");
  }
  if (std::ssize(splits) != batch.num_samples + 1 || splits.front() != 0 ||
      splits.back() != batch.num_ids() ||
      !std::is_sorted(splits.begin(), splits.end())) {
    return FeatureError(feature, "row_splits must be ", batch.num_samples + 1,
                        " numbers that ascend from 0 to the number of ids, ",
                        batch.num_ids(), ".");
  }
  return {};
}

// Whether the local samples divide evenly: by the SparseCores if features are
// split first, else by the devices.
Result<void> CheckNumSamples(const FeatureInput& feature,
                             const Topology& topology,
                             FeatureStackingStrategy strategy) {
  const int64_t num_samples = feature.batch.num_samples;
  const int64_t num_devices = topology.local_device_count;
  if (strategy == FeatureStackingStrategy::kStackThenSplit) {
    if (num_samples % num_devices == 0) return {};
    return FeatureError(feature, "has ", num_samples,
                        " samples, which local_device_count = ", num_devices,
                        " devices cannot share evenly. Pad or cut the batch to "
                        "a multiple of ",
                        num_devices, ".");
  }
  const int64_t num_local_scs = num_devices * topology.num_sc_per_device;
  if (num_samples % num_local_scs == 0) return {};
  return FeatureError(
      feature, "has ", num_samples,
      " samples, which local_device_count * num_sc_per_device = ", num_devices,
      " * ", topology.num_sc_per_device,
      " SparseCores cannot share evenly. Pad or cut the batch to a multiple "
      "of ",
      num_local_scs, ".");
}

Result<void> CheckBatch(const FeatureInput& feature, const Topology& topology,
                        FeatureStackingStrategy strategy) {
  JTE_RETURN_IF_ERROR(CheckNumSamples(feature, topology, strategy));
  const InputBatch& batch = feature.batch;
  if (batch.weights && std::ssize(*batch.weights) != batch.num_ids()) {
    return FeatureError(feature, "has ", batch.num_ids(), " ids and ",
                        batch.weights->size(),
                        " weights. Pass one weight per id.");
  }
  return CheckRowSplits(feature);
}

Result<void> CheckTransform(const FeatureInput& feature, int64_t num_scs) {
  const auto& [row_offset, col_offset, col_shift] = feature.transform;
  if (feature.vocabulary_size <= 0 || feature.vocabulary_size > kMaxInt32) {
    return FeatureError(feature, "the vocabulary_size of its table must be in ",
                        "[1, ", kMaxInt32, "], got ", feature.vocabulary_size,
                        ".");
  }
  if (row_offset < 0 || col_shift < 0 || col_offset < 0 ||
      col_offset % num_scs != 0) {
    return FeatureError(
        feature, "row_offset, col_shift and col_offset must not be negative, ",
        "and col_offset must be a multiple of the ", num_scs,
        " SparseCores, got ", row_offset, ", ", col_shift, " and ", col_offset,
        ". Stack its table for this topology.");
  }
  if (row_offset > kMaxCount || col_offset > kMaxCount) {
    return FeatureError(feature, "row_offset and col_offset must be at most ",
                        kMaxCount, ", got ", row_offset, " and ", col_offset,
                        ". Stack its table for this topology.");
  }
  return {};
}

// The row of the largest id.
Result<int64_t> CheckRows(const FeatureInput& feature, int64_t num_scs) {
  const int64_t col_offset = feature.transform.col_offset;
  const int64_t last_row =
      (feature.vocabulary_size - 1) / num_scs + col_offset / num_scs;
  // Also keeps every row below the padding value.
  if (last_row < kMaxInt32 / num_scs) return last_row;
  return FeatureError(
      feature, "vocabulary_size=", feature.vocabulary_size,
      " at col_offset=", col_offset, " on ", num_scs,
      " SparseCores needs stack rows beyond int32. Put its table "
      "into a smaller stack.");
}

Result<FeaturePlan> PlanFeature(FeatureInput feature, const Topology& topology,
                                FeatureStackingStrategy strategy) {
  const int64_t num_scs = topology.num_scs();
  JTE_RETURN_IF_ERROR(CheckBatch(feature, topology, strategy));
  JTE_RETURN_IF_ERROR(CheckTransform(feature, num_scs));
  JTE_ASSIGN_OR_RETURN(const auto last_row, CheckRows(feature, num_scs));
  const IdTransform transform = feature.transform;
  const bool split_first = strategy == FeatureStackingStrategy::kSplitThenStack;
  const int64_t num_samples = feature.batch.num_samples;
  return FeaturePlan{
      .input = std::move(feature),
      .samples_per_device = num_samples / topology.local_device_count,
      .samples_before = transform.row_offset /
                        (split_first ? num_scs : topology.global_device_count),
      .rotation = static_cast<uint32_t>(transform.col_shift % num_scs),
      .first_row = static_cast<uint32_t>(transform.col_offset / num_scs),
      .last_row = static_cast<uint32_t>(last_row)};
}

// The number of sample ids if features are split first. Those of different
// features must not overlap, or their samples would be added up.
Result<int64_t> SampleIdsOfSplitFeatures(
    const StackSpec& spec, const Topology& topology,
    const std::vector<FeaturePlan>& features) {
  const auto samples_per_sc = [&topology](const FeaturePlan& feature) {
    return feature.samples_per_device / topology.num_sc_per_device;
  };
  const auto end = [samples_per_sc](const FeaturePlan& feature) {
    return feature.samples_before + samples_per_sc(feature);
  };
  const FeaturePlan* previous = &features.front();
  for (const FeaturePlan& feature : std::span(features).subspan(1)) {
    if (samples_per_sc(feature) == 0) continue;  // They overlap nothing.
    if (end(*previous) > feature.samples_before) {
      return InvalidArgument(
          "Stack '", spec.name, "': feature '", previous->input.name,
          "' at row_offset=", previous->input.transform.row_offset, " has ",
          samples_per_sc(*previous), " samples per SparseCore and overlaps ",
          "feature '", feature.input.name,
          "' at row_offset=", feature.input.transform.row_offset,
          ". Pass batches of the sizes that the features declare. Those that "
          "declare another batch than they were stacked for are best left as "
          "they were: they take any.");
    }
    previous = &feature;
  }
  return end(*previous);
}

// The number of sample ids if features are stacked first: an equal part of a
// device's samples. Where the cuts are depends on all of them, so there must be
// no gaps for features that are not here.
Result<int64_t> SampleIdsOfStackedFeatures(
    const StackSpec& spec, const Topology& topology,
    const std::vector<FeaturePlan>& features) {
  const int64_t num_devices = topology.global_device_count;
  int64_t samples_per_device = 0;
  for (const FeaturePlan& feature : features) {
    if (feature.samples_per_device == 0) continue;
    if (feature.input.transform.row_offset !=
        samples_per_device * num_devices) {
      return InvalidArgument(
          "Stack '", spec.name, "': feature '", feature.input.name,
          "' is at row_offset=", feature.input.transform.row_offset,
          ", and the features before it have ",
          samples_per_device * num_devices,
          " samples on all devices. With STACK_THEN_SPLIT, pass all features "
          "of a stack, with batches of the sizes that they declare.");
    }
    samples_per_device += feature.samples_per_device;
    // More are refused by CheckTotals, and the product above might overflow.
    if (samples_per_device > kMaxSamplesPerDevice) return samples_per_device;
  }
  if (samples_per_device % topology.num_sc_per_device != 0) {
    return InvalidArgument(
        "Stack '", spec.name, "': its features have ", samples_per_device,
        " samples per device, which num_sc_per_device = ",
        topology.num_sc_per_device,
        " SparseCores cannot share evenly. Pad or cut the batches to a "
        "multiple of ",
        topology.num_sc_per_device, " samples per device in total.");
  }
  return samples_per_device / topology.num_sc_per_device;
}

// Sums over the features of a stack.
Result<void> CheckTotals(const StackPlan& plan) {
  int64_t samples_per_device = 0;
  for (const FeaturePlan& feature : plan.features) {
    samples_per_device += feature.samples_per_device;
  }
  // With gaps between the features, sample ids can be larger than that.
  samples_per_device = std::max(samples_per_device, plan.num_sample_ids);
  if (samples_per_device > kMaxSamplesPerDevice) {
    return InvalidArgument(
        "Stack '", plan.spec.name, "': ", samples_per_device,
        " samples per device exceeds the maximum limit supported by the "
        "SparseCore CooFormat, ",
        kMaxSamplesPerDevice, ". Use smaller batches or more devices.");
  }
  // Entries and aligned cells are counted in int32.
  if (plan.num_ids() > kMaxInt32 - kAlignment * plan.topology.num_scs()) {
    return InvalidArgument("Stack '", plan.spec.name, "': ", plan.num_ids(),
                           " ids are too many for one step on one host. Use "
                           "smaller batches.");
  }
  return {};
}

}  // namespace

SampleRange StackPlan::SamplesOf(const FeaturePlan& feature,
                                 int64_t local_sc) const {
  const int64_t num_samples = feature.samples_per_device;
  if (strategy == FeatureStackingStrategy::kSplitThenStack) {
    const int64_t size = num_samples / topology.num_sc_per_device;
    return {.first = local_sc * size,
            .size = size,
            .first_sample_id = feature.samples_before};
  }
  // Where the SparseCore's part of the device's samples meets the feature's.
  const int64_t device = local_sc / topology.num_sc_per_device;
  const int64_t part = local_sc % topology.num_sc_per_device * num_sample_ids;
  const auto into_feature = [&feature, num_samples](int64_t sample) {
    return std::clamp<int64_t>(sample - feature.samples_before, 0, num_samples);
  };
  const int64_t first = into_feature(part);
  return {.first = device * num_samples + first,
          .size = into_feature(part + num_sample_ids) - first,
          .first_sample_id = feature.samples_before + first - part};
}

Result<StackPlan> PlanStack(StackSpec spec, int64_t coo_cells_per_device,
                            std::vector<FeatureInput> features,
                            const Topology& topology,
                            FeatureStackingStrategy strategy) {
  const auto combiner = ParseCombiner(spec.combiner);
  if (!combiner) {
    return InvalidArgument("Stack '", spec.name,
                           "': ", combiner.error().message);
  }
  if (coo_cells_per_device <= 0 ||
      coo_cells_per_device % (kAlignment * topology.num_sc_per_device) != 0) {
    return InvalidArgument(
        "Stack '", spec.name, "': a COO buffer of ", coo_cells_per_device,
        " cells is not a positive multiple of ", kAlignment,
        " cells for each of the ", topology.num_sc_per_device, " SparseCores.");
  }
  const auto row_offset = [](const FeatureInput& feature) {
    return feature.transform.row_offset;
  };
  // Usually they are in order, and a sort would move them about all the same.
  if (!std::ranges::is_sorted(features, {}, row_offset)) {
    std::ranges::stable_sort(features, {}, row_offset);
  }
  std::vector<FeaturePlan> plans;
  plans.reserve(features.size());
  uint32_t max_row = 0;
  bool has_weights = false;
  for (FeatureInput& feature : features) {
    has_weights |= feature.batch.weights.has_value();
    JTE_ASSIGN_OR_RETURN(auto plan,
                         PlanFeature(std::move(feature), topology, strategy));
    max_row = std::max(max_row, plan.last_row);
    plans.push_back(std::move(plan));
  }
  JTE_ASSIGN_OR_RETURN(const auto num_sample_ids,
                       strategy == FeatureStackingStrategy::kSplitThenStack
                           ? SampleIdsOfSplitFeatures(spec, topology, plans)
                           : SampleIdsOfStackedFeatures(spec, topology, plans));

  const auto num_scs = static_cast<uint32_t>(topology.num_scs());
  StackPlan plan = {.spec = std::move(spec),
                    .topology = topology,
                    .strategy = strategy,
                    .combiner = *combiner,
                    .coo_cells_per_device = coo_cells_per_device,
                    .has_weights = has_weights,
                    .num_sample_ids = num_sample_ids,
                    .num_scs = Divisor(num_scs),
                    .sort_key = SortKey(num_scs, max_row),
                    .features = std::move(plans)};
  JTE_RETURN_IF_ERROR(CheckTotals(plan));
  return plan;
}

}  // namespace jte::convert
