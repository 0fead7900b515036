// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/naive_occurrences.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte {
namespace {

// The id after its policy. Outer none: an error; inner none: dropped.
std::optional<std::optional<int64_t>> CleanId(__int128 id, IdPolicy policy,
                                              int64_t vocabulary_size) {
  if (0 <= id && id < vocabulary_size) return static_cast<int64_t>(id);
  switch (policy) {
    case IdPolicy::kError:
      return std::nullopt;
    case IdPolicy::kDrop:
      return std::optional<int64_t>();
    case IdPolicy::kClamp:
      return id < 0 ? 0 : vocabulary_size - 1;
    case IdPolicy::kModulo: {
      const auto remainder = static_cast<int64_t>(id % vocabulary_size);
      return remainder < 0 ? remainder + vocabulary_size : remainder;
    }
  }
  return std::nullopt;
}

std::optional<std::optional<float>> CleanWeight(float weight,
                                                WeightPolicy policy) {
  if (std::isfinite(weight)) return weight;
  switch (policy) {
    case WeightPolicy::kError:
      return std::nullopt;
    case WeightPolicy::kDrop:
      return std::optional<float>();
    case WeightPolicy::kClamp:
      if (std::isnan(weight)) return 0.0f;
      return std::copysign(std::numeric_limits<float>::max(), weight);
    case WeightPolicy::kKeep:
      return weight;
  }
  return std::nullopt;
}

__int128 IdAt(const InputBatch& batch, int64_t position) {
  return std::visit([position](auto ids) -> __int128 { return ids[position]; },
                    batch.ids);
}

// Adds one sample. False: the request is refused.
bool AddSample(const FeatureInput& feature, Combiner combiner, int64_t r,
               int64_t sample, int64_t num_scs, SourceCore& core) {
  const InputBatch& batch = feature.batch;
  std::vector<int64_t> ids;
  std::vector<float> weights;
  for (int64_t i = batch.FirstId(r); i < batch.FirstId(r + 1); ++i) {
    const auto id = CleanId(IdAt(batch, i), feature.out_of_range_ids,
                            feature.vocabulary_size);
    if (!id) return false;
    if (!*id) {
      ++core.dropped_id_count;
      continue;
    }
    const auto weight = CleanWeight(batch.weights ? (*batch.weights)[i] : 1.0f,
                                    feature.non_finite_weights);
    if (!weight) return false;
    if (!*weight) {
      ++core.dropped_id_count;
      continue;
    }
    ids.push_back(**id);
    weights.push_back(**weight);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t column = feature.transform.Column(ids[i], num_scs);
    core.occurrences.push_back(
        {.target = column % num_scs,
         .row = column / num_scs,
         .sample = sample,
         .gain = batch.weights ? WeightedGain(weights[i],
                                              WeightDivisor(combiner, weights))
                               : UnweightedGain(combiner, std::ssize(ids))});
  }
  return true;
}

// Calls add(feature, sample of the feature, SparseCore, sample id).
template <typename Add>
bool ForEachSample(const std::vector<FeatureInput>& features,
                   const ConvertOptions& options, Add add) {
  const auto& [num_local, num_global, num_sc] = options.topology;
  const bool split_first = options.feature_stacking_strategy ==
                           FeatureStackingStrategy::kSplitThenStack;
  int64_t device_batch = 0;
  for (const FeatureInput& feature : features) {
    device_batch += feature.batch.num_samples / num_local;
  }
  for (const FeatureInput& feature : features) {
    const int64_t per_device = feature.batch.num_samples / num_local;
    for (int64_t r = 0; r < feature.batch.num_samples; ++r) {
      const int64_t device = r / per_device;
      const int64_t i = r % per_device;
      int64_t core = 0, sample = 0;
      if (split_first) {
        const int64_t per_core = per_device / num_sc;
        core = i / per_core;
        sample =
            feature.transform.row_offset / (num_global * num_sc) + i % per_core;
      } else {
        const int64_t position = feature.transform.row_offset / num_global + i;
        core = position / (device_batch / num_sc);
        sample = position % (device_batch / num_sc);
      }
      if (!add(feature, r, device * num_sc + core, sample)) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::vector<SourceCore>> Distribute(
    const StackSpec& spec, std::vector<FeatureInput> features,
    const ConvertOptions& options) {
  std::ranges::stable_sort(features, {}, [](const FeatureInput& feature) {
    return feature.transform.row_offset;
  });
  const Topology& topology = options.topology;
  std::vector<SourceCore> cores(topology.local_device_count *
                                topology.num_sc_per_device);
  const Combiner combiner = *ParseCombiner(spec.combiner);
  const bool accepted = ForEachSample(
      features, options,
      [combiner, &topology, &cores](const FeatureInput& feature, int64_t r,
                                    int64_t core, int64_t sample) {
        return AddSample(feature, combiner, r, sample, topology.num_scs(),
                         cores[core]);
      });
  if (!accepted) return std::nullopt;
  return cores;
}

}  // namespace jte
