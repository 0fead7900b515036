// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"

#include <cstdint>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

// The part of one feature that one SparseCore gets.
struct Slice {
  const StackPlan& plan;
  const FeaturePlan& feature;
  int64_t first_sample;

  int64_t FirstId(int64_t r) const {  // of the r-th sample of the slice
    return feature.input.batch.FirstId(first_sample + r);
  }
  int64_t begin() const { return FirstId(0); }
  int64_t size() const { return FirstId(feature.samples_per_sc) - begin(); }
};

// Writes the elements of `ids`, with their ordinals from first_payload on as
// payload. Returns false if an id is out of range; its element is then
// meaningless, but safe to have.
//
// Equal to IdTransform::Column, taken apart: a rotation moves the partition
// and not the row.
template <typename Id>
bool WriteElements(const Slice& slice, std::span<const Id> ids,
                   uint32_t first_payload, uint64_t* elements) {
  const Divisor by_num_scs = slice.plan.num_scs;
  const SortKey sort_key = slice.plan.sort_key;
  const auto num_scs = static_cast<uint32_t>(slice.plan.topology.num_scs());
  const uint32_t rotation = slice.feature.rotation;
  const uint32_t first_row = slice.feature.first_row;
  const auto vocabulary_size =
      static_cast<uint64_t>(slice.feature.input.vocabulary_size);
  bool out_of_range = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    // A negative id becomes a large number.
    out_of_range |= static_cast<uint64_t>(ids[i]) >= vocabulary_size;
    const auto id = static_cast<uint32_t>(ids[i]);
    const uint32_t quotient = by_num_scs.Quotient(id);
    const uint32_t rotated = id - quotient * num_scs + rotation;
    const uint32_t partition = rotated >= num_scs ? rotated - num_scs : rotated;
    elements[i] =
        SortKey::Element(sort_key.Key(partition, quotient + first_row),
                         first_payload + static_cast<uint32_t>(i));
  }
  return !out_of_range;
}

// Replaces the payloads of the slice's elements by their samples.
void WriteSamples(const Slice& slice, uint64_t* elements) {
  const auto first_sample =
      static_cast<uint32_t>(slice.feature.first_sample_id);
  for (int64_t r = 0, i = 0; r < slice.feature.samples_per_sc; ++r) {
    for (const int64_t end = slice.FirstId(r + 1) - slice.begin(); i < end;
         ++i) {
      elements[i] = SortKey::Element(SortKey::KeyOf(elements[i]),
                                     first_sample + static_cast<uint32_t>(r));
    }
  }
}

void WriteSampleGains(const Slice& slice, std::span<float> gains) {
  for (int64_t r = 0; r < slice.feature.samples_per_sc; ++r) {
    const int64_t num_ids = slice.FirstId(r + 1) - slice.FirstId(r);
    // That of a sample without ids is never read.
    gains[slice.feature.first_sample_id + r] =
        UnweightedGain(slice.plan.combiner, num_ids);
  }
}

void WriteWeightedIds(const Slice& slice, WeightedId* weighted_ids) {
  const std::span<const float> all_weights = *slice.feature.input.batch.weights;
  for (int64_t r = 0; r < slice.feature.samples_per_sc; ++r) {
    const auto sample = static_cast<int32_t>(slice.feature.first_sample_id + r);
    const int64_t begin = slice.FirstId(r);
    const auto weights =
        all_weights.subspan(begin, slice.FirstId(r + 1) - begin);
    const float divisor = WeightDivisor(slice.plan.combiner, weights);
    for (float weight : weights) {
      *weighted_ids++ = {.sample = sample, .gain = weight / divisor};
    }
  }
}

template <typename Id>
std::unexpected<Error> OutOfRange(const Slice& slice,
                                  std::span<const Id> all_ids) {
  const FeatureInput& feature = slice.feature.input;
  for (int64_t r = 0; r < slice.feature.samples_per_sc; ++r) {
    for (int64_t i = slice.FirstId(r); i < slice.FirstId(r + 1); ++i) {
      if (all_ids[i] >= 0 && all_ids[i] < feature.vocabulary_size) continue;
      return InvalidArgument(
          "Feature '", feature.name, "': sample ", slice.first_sample + r,
          " has id ", all_ids[i], " at position ", i - slice.FirstId(r),
          ", outside of [0, ", feature.vocabulary_size,
          "), the range of its table. Map ids into the range, or raise "
          "vocabulary_size.");
    }
  }
  return InvalidArgument("Feature '", feature.name,
                         "': its ids changed while they were converted.");
}

}  // namespace

Result<ExtractedIds> ExtractIds(const StackPlan& plan, int64_t local_sc,
                                Scratch& scratch) {
  const auto slice_of = [&plan, local_sc](const FeaturePlan& feature) {
    return Slice{plan, feature, local_sc * feature.samples_per_sc};
  };
  int64_t num_ids = 0;
  for (const FeaturePlan& feature : plan.features) {
    num_ids += slice_of(feature).size();
  }

  ExtractedIds extracted = {.elements = scratch.elements.Take(num_ids),
                            .gains = UnitGains{}};
  std::span<float> sample_gains;
  std::span<WeightedId> weighted_ids;
  if (plan.has_weights) {
    weighted_ids = scratch.weighted_ids.Take(num_ids);
    extracted.gains = IdGains{weighted_ids};
  } else if (plan.combiner != Combiner::kSum) {
    sample_gains = scratch.sample_gains.Take(plan.num_sample_ids);
    extracted.gains = SampleGains{sample_gains};
  }

  int64_t position = 0;
  for (const FeaturePlan& feature : plan.features) {
    const Slice slice = slice_of(feature);
    uint64_t* const elements = extracted.elements.data() + position;
    const bool one_id_per_sample = feature.input.batch.row_splits.empty() &&
                                   feature.input.batch.valency == 1;
    const auto first_payload = static_cast<uint32_t>(
        plan.has_weights ? position : feature.first_sample_id);
    const auto write = [&slice, first_payload,
                        elements](auto all_ids) -> Result<void> {
      if (WriteElements(slice, all_ids.subspan(slice.begin(), slice.size()),
                        first_payload, elements)) {
        return {};
      }
      return OutOfRange(slice, all_ids);
    };
    if (auto written = std::visit(write, feature.input.batch.ids); !written) {
      return std::unexpected(written.error());
    }
    if (plan.has_weights) {
      WriteWeightedIds(slice, weighted_ids.data() + position);
    } else if (!one_id_per_sample) {
      WriteSamples(slice, elements);
    }
    if (!sample_gains.empty()) WriteSampleGains(slice, sample_gains);
    position += slice.size();
  }
  return extracted;
}

}  // namespace jte
