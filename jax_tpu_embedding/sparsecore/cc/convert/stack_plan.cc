// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte {
namespace {

// The hardware's cells have 26 bits for the sample.
constexpr int64_t kMaxSamplesPerDevice = (int64_t{1} << 26) - 1;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

template <typename... Parts>
std::unexpected<Error> FeatureError(const FeatureInput& feature,
                                    const Parts&... parts) {
  return InvalidArgument("Feature '", feature.name, "': ", parts...);
}

Result<void> CheckRowSplits(const FeatureInput& feature) {
  const InputBatch& batch = feature.batch;
  const auto& splits = batch.row_splits;
  if (splits.empty()) {
    if (batch.valency >= 0 &&
        batch.num_samples * batch.valency == batch.num_ids()) {
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

Result<void> CheckBatch(const FeatureInput& feature, const Topology& topology) {
  const InputBatch& batch = feature.batch;
  const int64_t num_local_scs =
      topology.local_device_count * topology.num_sc_per_device;
  if (batch.num_samples % num_local_scs != 0) {
    return FeatureError(
        feature, "has ", batch.num_samples,
        " samples, which local_device_count * num_sc_per_device = ",
        topology.local_device_count, " * ", topology.num_sc_per_device,
        " SparseCores cannot share evenly. Pad or cut the batch to a multiple "
        "of ",
        num_local_scs, ".");
  }
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
  return {};
}

// The row of the largest id.
Result<int64_t> CheckRows(const FeatureInput& feature, int64_t num_scs) {
  const int64_t col_offset = feature.transform.col_offset;
  const int64_t last_row =
      (feature.vocabulary_size - 1) / num_scs + col_offset / num_scs;
  // Also keeps every row below the padding value.
  if (last_row < kMaxInt32 / num_scs) return last_row;
  return FeatureError(feature, "vocabulary_size=", feature.vocabulary_size,
                      " at col_offset=", col_offset, " on ", num_scs,
                      " SparseCores needs columns beyond int32. Put its table "
                      "into a smaller stack.");
}

Result<FeaturePlan> PlanFeature(const FeatureInput& feature,
                                const Topology& topology) {
  const int64_t num_scs = topology.num_scs();
  if (auto checked = CheckBatch(feature, topology); !checked) {
    return std::unexpected(checked.error());
  }
  if (auto checked = CheckTransform(feature, num_scs); !checked) {
    return std::unexpected(checked.error());
  }
  const auto last_row = CheckRows(feature, num_scs);
  if (!last_row) return std::unexpected(last_row.error());
  const IdTransform& transform = feature.transform;
  return FeaturePlan{
      .input = feature,
      .samples_per_sc =
          feature.batch.num_samples /
          (topology.local_device_count * topology.num_sc_per_device),
      .first_sample_id = transform.row_offset / num_scs,
      .rotation = static_cast<uint32_t>(transform.col_shift % num_scs),
      .first_row = static_cast<uint32_t>(transform.col_offset / num_scs),
      .last_row = static_cast<uint32_t>(*last_row)};
}

int64_t EndOfSampleIds(const FeaturePlan& feature) {
  return feature.first_sample_id + feature.samples_per_sc;
}

// The number of sample ids. Those of different features must not overlap, or
// their samples would be added up.
Result<int64_t> CheckSampleIds(const StackSpec& spec,
                               const std::vector<FeaturePlan>& features) {
  const FeaturePlan* previous = &features.front();
  for (const FeaturePlan& feature : std::span(features).subspan(1)) {
    if (feature.samples_per_sc == 0) continue;  // They overlap nothing.
    if (EndOfSampleIds(*previous) > feature.first_sample_id) {
      return InvalidArgument(
          "Stack '", spec.name, "': feature '", previous->input.name,
          "' at row_offset=", previous->input.transform.row_offset, " has ",
          previous->samples_per_sc, " samples per SparseCore and overlaps ",
          "feature '", feature.input.name,
          "' at row_offset=", feature.input.transform.row_offset,
          ". Pass batches of the sizes that the features declare.");
    }
    previous = &feature;
  }
  return EndOfSampleIds(*previous);
}

Result<void> CheckWeights(const StackSpec& spec,
                          const std::vector<FeatureInput>& features) {
  for (const FeatureInput& feature : features) {
    if (feature.batch.weights.has_value() !=
        features.front().batch.weights.has_value()) {
      return InvalidArgument(
          "Stack '", spec.name, "': of features '", features.front().name,
          "' and '", feature.name,
          "' only one has weights. Pass weights for all features, or for "
          "none.");
    }
  }
  return {};
}

// Sums over the features of a stack.
Result<void> CheckTotals(const StackPlan& plan) {
  int64_t samples_per_device = 0;
  for (const FeaturePlan& feature : plan.features) {
    samples_per_device +=
        feature.samples_per_sc * plan.topology.num_sc_per_device;
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

Result<StackPlan> PlanStack(StackSpec spec, int64_t coo_cells_per_device,
                            std::vector<FeatureInput> features,
                            const Topology& topology) {
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
  std::ranges::stable_sort(
      features, std::ranges::less{},
      [](const FeatureInput& feature) { return feature.transform.row_offset; });
  if (auto checked = CheckWeights(spec, features); !checked) {
    return std::unexpected(checked.error());
  }
  std::vector<FeaturePlan> plans;
  uint32_t max_row = 0;
  for (const FeatureInput& feature : features) {
    auto plan = PlanFeature(feature, topology);
    if (!plan) return std::unexpected(plan.error());
    max_row = std::max(max_row, plan->last_row);
    plans.push_back(*std::move(plan));
  }
  const auto num_sample_ids = CheckSampleIds(spec, plans);
  if (!num_sample_ids) return std::unexpected(num_sample_ids.error());

  const auto num_scs = static_cast<uint32_t>(topology.num_scs());
  StackPlan plan = {.spec = std::move(spec),
                    .topology = topology,
                    .combiner = *combiner,
                    .coo_cells_per_device = coo_cells_per_device,
                    .has_weights = features.front().batch.weights.has_value(),
                    .num_sample_ids = *num_sample_ids,
                    .num_scs = Divisor(num_scs),
                    .sort_key = SortKey(num_scs, max_row),
                    .features = std::move(plans)};
  if (auto checked = CheckTotals(plan); !checked) {
    return std::unexpected(checked.error());
  }
  return plan;
}

}  // namespace jte
