// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/clean_slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/id_gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sample_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/write_elements.h"

namespace jte {
namespace {

// Ids that take each step together; what steps hand to each other stays in the
// L1 cache.
constexpr int64_t kBlockSize = 512;

// Where the ids of a SparseCore go. What the stack's gains do not need is
// empty.
struct Output {
  std::span<uint64_t> elements;
  std::span<float> sample_factors;     // one per sample id
  std::span<float> id_gains;           // one per element
  std::span<WeightedId> weighted_ids;  // one per element
  int position_bits = 0;               // of PackedGains; 0 for other gains
};

// Of the n ids from position `first` on; without position_bits, the positions.
JTE_VECTOR_CLONES
void WritePayloads(const uint32_t* samples, uint32_t first, int position_bits,
                   int64_t n, uint32_t* payloads) {
  if (position_bits == 0) {
    for (int64_t i = 0; i < n; ++i) payloads[i] = first++;
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    payloads[i] = PackedGains::Payload(samples[i], first++, position_bits);
  }
}

// The gains of n ids from `begin` on, which lie at `first` on their SparseCore.
void WriteGains(const StackPlan& plan, const Slice& slice, int64_t begin,
                int64_t n, const uint32_t* samples, int64_t first,
                const Output& output) {
  if (!output.id_gains.empty()) {
    WriteIdGains(plan.combiner, slice, begin, n, samples, output.sample_factors,
                 output.id_gains.data() + first);
  }
  if (!output.weighted_ids.empty()) {
    std::array<float, kBlockSize> gains;
    WriteIdGains(plan.combiner, slice, begin, n, samples, output.sample_factors,
                 gains.data());
    ZipIds(samples, gains.data(), n, output.weighted_ids.data() + first);
  }
}

// Of a slice with weights. What they are divided by is finite only if all of
// them are; the other way round it may have overflown.
bool WeightsAreFinite(Combiner combiner, const Slice& slice,
                      std::span<const float> sample_factors) {
  return (combiner != Combiner::kSum &&
          AreFinite(sample_factors.subspan(slice.samples.first_sample_id,
                                           slice.samples.size))) ||
         AreFinite(*slice.weights);
}

// Writes a slice from `position` on. Returns false, with unspecified output, if
// an id is out of range, or a weight is not finite that has to be.
bool WriteSlice(const StackPlan& plan, const FeaturePlan& feature,
                const Slice& slice, int64_t position, const Output& output) {
  const int64_t num_ids = slice.num_ids();
  // Without samples, the first one may be beyond the SparseCore.
  if (num_ids == 0) return true;
  if (!output.sample_factors.empty()) {
    WriteSampleFactors(plan.combiner, slice, output.sample_factors);
  }
  if (slice.weights &&
      feature.input.non_finite_weights != WeightPolicy::kKeep &&
      !WeightsAreFinite(plan.combiner, slice, output.sample_factors)) {
    return false;
  }
  SampleIds sample_ids(slice);
  for (int64_t begin = 0; begin < num_ids; begin += kBlockSize) {
    const int64_t n = std::min(kBlockSize, num_ids - begin);
    const int64_t first = position + begin;
    std::array<uint32_t, kBlockSize + SampleIds::kSlack> samples;
    std::array<uint32_t, kBlockSize> payloads_with_positions;
    sample_ids.Next(n, samples.data());
    const uint32_t* payloads = samples.data();
    if (plan.has_weights) {
      WriteGains(plan, slice, begin, n, samples.data(), first, output);
      WritePayloads(samples.data(), static_cast<uint32_t>(first),
                    output.position_bits, n, payloads_with_positions.data());
      payloads = payloads_with_positions.data();
    }
    if (!WriteElements(plan, feature, slice.ids, begin, n, payloads,
                       output.elements.data() + first)) {
      return false;
    }
  }
  return true;
}

// How many ids every sample of the SparseCore has, if that is one number and
// the samples follow from the positions of their ids.
std::optional<int64_t> CommonValency(const StackPlan& plan, int64_t local_sc) {
  const int64_t valency = plan.features.front().input.batch.valency;
  int64_t position = 0;
  for (const FeaturePlan& feature : plan.features) {
    const Slice slice = SliceOf(plan, feature, local_sc);
    if (!slice.row_splits.empty()) return std::nullopt;
    if (slice.num_ids() == 0) continue;
    if (slice.valency != valency ||
        slice.samples.first_sample_id * valency != position) {
      return std::nullopt;
    }
    position += slice.num_ids();
  }
  if (valency == 0) return std::nullopt;
  return valency;
}

// For stacks with weights and a common valency. None if an id or a weight is
// not as it should be: once ids are dropped, samples have any number of them.
std::optional<ExtractedIds> ExtractMatrices(const StackPlan& plan,
                                            int64_t local_sc, int64_t valency,
                                            Output output, Scratch& scratch) {
  const Slice first = SliceOf(plan, plan.features.front(), local_sc);
  const bool weights_are_gains = plan.features.size() == 1 &&
                                 plan.combiner == Combiner::kSum &&
                                 first.weights.has_value();
  std::span<const float> gains;
  if (weights_are_gains) {
    gains = *first.weights;
  } else {
    gains = output.id_gains = scratch.id_gains.Take(output.elements.size());
  }
  int64_t position = 0;
  for (const FeaturePlan& feature : plan.features) {
    const Slice slice = SliceOf(plan, feature, local_sc);
    if (!WriteSlice(plan, feature, slice, position, output)) {
      return std::nullopt;
    }
    position += slice.num_ids();
  }
  return ExtractedIds{
      .elements = output.elements,
      .gains = MatrixGains{.gains = gains,
                           .valency = Divisor(static_cast<uint32_t>(valency))}};
}

}  // namespace

Result<ExtractedIds> ExtractIds(const StackPlan& plan, int64_t local_sc,
                                Scratch& scratch) {
  int64_t num_ids = 0;
  bool all_have_weights = true;
  for (const FeaturePlan& feature : plan.features) {
    num_ids += SliceOf(plan, feature, local_sc).num_ids();
    all_have_weights &= feature.input.batch.weights.has_value();
  }
  Output output;
  output.elements = scratch.elements.Take(num_ids);
  if (plan.combiner != Combiner::kSum ||
      (plan.has_weights && !all_have_weights)) {
    output.sample_factors = scratch.sample_factors.Take(plan.num_sample_ids);
  }
  ExtractedIds extracted = {.elements = {}, .gains = UnitGains{}};
  if (plan.has_weights) {
    if (const auto valency = CommonValency(plan, local_sc)) {
      const auto matrices =
          ExtractMatrices(plan, local_sc, *valency, output, scratch);
      if (matrices) return *matrices;
    }
    const int position_bits = std::bit_width(static_cast<uint64_t>(num_ids));
    const int sample_bits =
        std::bit_width(static_cast<uint64_t>(plan.num_sample_ids));
    if (sample_bits + position_bits <= 32) {
      output.position_bits = position_bits;
      output.id_gains = scratch.id_gains.Take(num_ids);
      extracted.gains =
          PackedGains{.gains = output.id_gains, .position_bits = position_bits};
    } else {
      output.weighted_ids = scratch.weighted_ids.Take(num_ids);
      extracted.gains = IdGains{output.weighted_ids};
    }
  } else if (!output.sample_factors.empty()) {
    extracted.gains = SampleGains{output.sample_factors};
  }

  int64_t position = 0;
  for (const FeaturePlan& feature : plan.features) {
    const Slice slice = SliceOf(plan, feature, local_sc);
    if (WriteSlice(plan, feature, slice, position, output)) {
      position += slice.num_ids();
      continue;
    }
    const auto clean = Clean(feature.input, slice);
    if (!clean) return std::unexpected(clean.error());
    WriteSlice(plan, feature, clean->View(), position, output);
    position += std::ssize(clean->ids);
    extracted.dropped_id_count += clean->dropped_id_count;
  }
  extracted.elements = output.elements.first(position);
  return extracted;
}

}  // namespace jte
