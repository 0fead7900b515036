// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/testing/random_request.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/feature_stacking_strategy.h"

namespace jte::convert {
namespace {

// Few SparseCores of a large request get many ids each.
Topology RandomTopology(Random& random, bool is_large) {
  const int64_t num_global = random.Integer(1, is_large ? 2 : 5);
  return {.local_device_count = random.Integer(1, num_global),
          .global_device_count = num_global,
          .num_sc_per_device = random.Integer(1, is_large ? 2 : 4)};
}

ConvertOptions RandomOptions(Random& random, bool is_large) {
  ConvertOptions options = {.topology = RandomTopology(random, is_large)};
  options.allow_id_dropping = random.OneIn(2);
  options.enable_minibatching = random.OneIn(2);
  if (options.enable_minibatching) {  // one host: there is no other to ask
    options.topology.global_device_count = options.topology.local_device_count;
  }
  options.feature_stacking_strategy =
      random.Choose({FeatureStackingStrategy::kSplitThenStack,
                     FeatureStackingStrategy::kStackThenSplit});
  return options;
}

// Small limits, so that they are exceeded; half of those of large requests are
// not.
int64_t RandomLimit(Random& random, bool is_large) {
  if (is_large && random.OneIn(2)) return random.Integer(1000, 10'000);
  return random.Integer(1, random.OneIn(2) ? 5 : 60);
}

StackSpec RandomStack(Random& random, const ConvertOptions& options,
                      bool is_large, int i) {
  StackSpec spec = {
      .name = "stack" + std::to_string(i),
      .combiner = random.Choose<const char*>({"sum", "mean", "sqrtn"}),
      .max_ids_per_partition = RandomLimit(random, is_large),
      .max_unique_ids_per_partition = RandomLimit(random, is_large)};
  const int64_t most_cells =
      MaxCooCellsPerDevice(spec.max_ids_per_partition, options.topology,
                           options.enable_minibatching);
  if (is_large) {
    // The most would be gigabytes at times.
    spec.suggested_coo_buffer_size_per_device =
        std::min<int64_t>(most_cells, 1 << 15);
  } else if (random.OneIn(2)) {
    spec.suggested_coo_buffer_size_per_device = random.Integer(1, most_cells);
  }
  return spec;
}

// Mostly in range. What is not is anything, the borders for preference.
int64_t RandomId(Random& random, const FeatureInput& feature, bool garbage) {
  if (garbage && random.OneIn(4)) {
    constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    // The low 32 bits of the last are those of an id in range.
    return random.Choose({int64_t{-1}, feature.vocabulary_size,
                          -feature.vocabulary_size, kMin, kMax,
                          random.Integer(kMin, kMax),
                          (int64_t{1} << 32) + random.Integer(0, 1)});
  }
  return random.Integer(0, feature.vocabulary_size - 1);
}

float RandomWeight(Random& random, bool garbage) {
  if (garbage && random.OneIn(6)) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    return random.Choose({kInfinity, -kInfinity,
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::max(), -0.0f});
  }
  if (random.OneIn(4)) return 0.0f;
  return static_cast<float>(random.Integer(-30, 100)) / 7.0f;
}

// How many ids a sample has. That of a large request has now and then more than
// a block.
int64_t RandomLength(Random& random, bool is_large) {
  if (is_large && random.OneIn(100)) return random.Integer(500, 1600);
  return random.Integer(0, 8);
}

// Ids, their form and weights for `num_samples` samples.
void AddBatch(Random& random, int64_t num_samples, bool is_large,
              FeatureInput& feature, Request& request) {
  InputBatch& batch = feature.batch;
  batch.num_samples = num_samples;
  int64_t num_ids = 0;
  if (random.OneIn(2)) {
    batch.valency = random.Integer(0, 6);
    num_ids = num_samples * batch.valency;
  } else {
    std::vector<int64_t>& splits = request.int64s.emplace_back(1, 0);
    for (int64_t r = 0; r < num_samples; ++r) {
      splits.push_back(splits.back() + RandomLength(random, is_large));
    }
    num_ids = splits.back();
    batch.row_splits = splits;
  }
  feature.out_of_range_ids = random.Choose(
      {IdPolicy::kError, IdPolicy::kDrop, IdPolicy::kClamp, IdPolicy::kModulo});
  feature.non_finite_weights =
      random.Choose({WeightPolicy::kError, WeightPolicy::kDrop,
                     WeightPolicy::kClamp, WeightPolicy::kKeep});
  // Where garbage is an error, rarely: the request would end there.
  const bool garbage_ids =
      random.OneIn(feature.out_of_range_ids == IdPolicy::kError ? 16 : 2);
  const bool garbage_weights =
      random.OneIn(feature.non_finite_weights == WeightPolicy::kError ? 16 : 2);
  const auto fill = [&random, &feature, garbage_ids, num_ids](auto& ids) {
    using Id = std::decay_t<decltype(ids)>::value_type;
    for (int64_t i = 0; i < num_ids; ++i) {
      ids.push_back(static_cast<Id>(RandomId(random, feature, garbage_ids)));
    }
    return std::span<const Id>(ids);
  };
  switch (random.Integer(0, 2)) {
    case 0:
      batch.ids = fill(request.int32s.emplace_back());
      break;
    case 1:
      batch.ids = fill(request.int64s.emplace_back());
      break;
    case 2:
      batch.ids = fill(request.uint64s.emplace_back());
      break;
  }
  if (random.OneIn(2)) {
    std::vector<float>& weights = request.weights.emplace_back();
    for (int64_t i = 0; i < num_ids; ++i) {
      weights.push_back(RandomWeight(random, garbage_weights));
    }
    batch.weights = weights;
  }
}

// The local samples of `n` features of a stack, as the strategy needs them.
std::vector<int64_t> RandomBatchSizes(Random& random, int64_t n, bool is_large,
                                      const ConvertOptions& options) {
  const auto& [num_local, num_global, num_sc] = options.topology;
  std::vector<int64_t> sizes(n);
  int64_t sum = 0;
  for (int64_t& size : sizes) {
    size = random.Integer(1, is_large ? 300 : 5);
    sum += size;
  }
  if (options.feature_stacking_strategy ==
      FeatureStackingStrategy::kSplitThenStack) {
    for (int64_t& size : sizes) size *= num_local * num_sc;
  } else {
    sizes.back() += (num_sc - sum % num_sc) % num_sc;
    for (int64_t& size : sizes) size *= num_local;
  }
  return sizes;
}

}  // namespace

Request RandomRequest(Random& random) {
  Request request;
  const bool is_large = random.OneIn(10);
  request.options = RandomOptions(random, is_large);
  const Topology& topology = request.options.topology;
  const int64_t num_stacks = random.Integer(1, 3);
  for (int64_t i = 0; i < num_stacks; ++i) {
    const StackSpec spec =
        RandomStack(random, request.options, is_large, static_cast<int>(i));
    const int64_t num_features = random.Integer(1, 3);
    const std::vector<int64_t> sizes =
        RandomBatchSizes(random, num_features, is_large, request.options);
    int64_t row_offset = 0;
    for (const int64_t size : sizes) {
      FeatureInput feature = {
          .name = "feature" + std::to_string(request.features.size()),
          .vocabulary_size =
              random.Choose({int64_t{1}, random.Integer(1, 40),
                             random.Integer(1, 400), int64_t{100000000}}),
          .transform = {
              .row_offset = row_offset,
              .col_offset = random.Integer(0, 9) * topology.num_scs(),
              .col_shift = random.Integer(0, topology.num_scs() - 1)}};
      AddBatch(random, size, is_large, feature, request);
      request.features.push_back({.feature = feature, .stack = spec});
      row_offset +=
          size / topology.local_device_count * topology.global_device_count;
    }
  }
  // The order of features does not matter, as long as stacks appear in the
  // same one.
  if (num_stacks == 1 && random.OneIn(2)) {
    std::ranges::reverse(request.features);
  }
  return request;
}

void Spoil(Random& random, Request& request) {
  StackedFeature& stacked =
      request.features[random.Integer(0, std::ssize(request.features) - 1)];
  FeatureInput& feature = stacked.feature;
  std::vector<int64_t*> numbers = {
      &request.options.topology.local_device_count,
      &request.options.topology.global_device_count,
      &request.options.topology.num_sc_per_device,
      &stacked.stack.max_ids_per_partition,
      &stacked.stack.max_unique_ids_per_partition,
      &feature.vocabulary_size,
      &feature.transform.row_offset,
      &feature.transform.col_offset,
      &feature.transform.col_shift,
      &feature.batch.num_samples,
      &feature.batch.valency};
  if (stacked.stack.suggested_coo_buffer_size_per_device) {
    numbers.push_back(&*stacked.stack.suggested_coo_buffer_size_per_device);
  }
  if (!feature.batch.row_splits.empty()) {
    // Changes a copy, so that the splits of other features stay what they are.
    std::vector<int64_t>& splits = request.int64s.emplace_back(
        feature.batch.row_splits.begin(), feature.batch.row_splits.end());
    feature.batch.row_splits = splits;
    for (int64_t& split : splits) numbers.push_back(&split);
  }
  int64_t& number = *numbers[random.Integer(0, std::ssize(numbers) - 1)];
  number = random.Choose({number - 1, number + 1, -number, 2 * number,
                          number + 8, int64_t{0}, int64_t{-1}, int64_t{1} << 31,
                          int64_t{1} << 32, std::numeric_limits<int64_t>::max(),
                          std::numeric_limits<int64_t>::min()});
}

}  // namespace jte::convert
