// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/clean_slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/divisor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/sort_key.h"

namespace jte {
namespace {

// The row of an id, without the offset of its table, and its partition: equal
// to IdTransform::Column, taken apart. A rotation moves the partition and not
// the row.
struct RowAndPartition {
  uint32_t row;
  uint32_t partition;
};

class AnyNumberOfScs {
 public:
  AnyNumberOfScs(const StackPlan& plan, uint32_t rotation)
      : divisor_(plan.num_scs),
        num_scs_(static_cast<uint32_t>(plan.topology.num_scs())),
        rotation_(rotation) {}

  RowAndPartition operator()(uint32_t id) const {
    const uint32_t row = divisor_.Quotient(id);
    const uint32_t rotated = id - row * num_scs_ + rotation_;
    return {row, rotated >= num_scs_ ? rotated - num_scs_ : rotated};
  }

 private:
  Divisor divisor_;
  uint32_t num_scs_;
  uint32_t rotation_;
};

// The same for the usual ones, with operations that can be vectorized: 1.1
// instead of 1.4 ns per id.
class PowerOfTwoScs {
 public:
  PowerOfTwoScs(const StackPlan& plan, uint32_t rotation)
      : mask_(static_cast<uint32_t>(plan.topology.num_scs()) - 1),
        shift_(std::popcount(mask_)),
        rotation_(rotation) {}

  RowAndPartition operator()(uint32_t id) const {
    return {id >> shift_, (id + rotation_) & mask_};
  }

 private:
  uint32_t mask_;
  int shift_;
  uint32_t rotation_;
};

// The payload of the i-th id of a slice: first + i.
struct OrdinalPayload {
  uint32_t first;

  uint32_t operator()(uint32_t i) const { return first + i; }
};

// first + i / valency, for i * valency < 2^32. With m = ceil(2^32 / valency),
// i * m / 2^32 is above i / valency by less than i / 2^32 < 1 / valency, too
// little to reach the next number.
class SamplePayload {
 public:
  SamplePayload(uint32_t first, uint32_t valency)
      : first_(first),
        multiplier_(CeilDiv(uint64_t{1} << 32, uint64_t{valency})) {}

  uint32_t operator()(uint32_t i) const {
    return first_ + static_cast<uint32_t>((i * uint64_t{multiplier_}) >> 32);
  }

 private:
  uint32_t first_;
  uint32_t multiplier_;
};

// Writes one element per id. Returns false if an id is out of range; its
// element is then meaningless, but safe to have.
template <typename Id>
bool WriteElements(const StackPlan& plan, const FeaturePlan& feature,
                   std::span<const Id> ids, auto locate, auto payload,
                   uint64_t* elements) {
  const SortKey sort_key = plan.sort_key;
  const uint32_t first_row = feature.first_row;
  const auto vocabulary_size =
      static_cast<uint64_t>(feature.input.vocabulary_size);
  bool out_of_range = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    // A negative id becomes a large number.
    out_of_range |= static_cast<uint64_t>(ids[i]) >= vocabulary_size;
    const auto [row, partition] = locate(static_cast<uint32_t>(ids[i]));
    elements[i] = SortKey::Element(sort_key.Key(partition, row + first_row),
                                   payload(static_cast<uint32_t>(i)));
  }
  return !out_of_range;
}

std::variant<AnyNumberOfScs, PowerOfTwoScs> LocatorOf(
    const StackPlan& plan, const FeaturePlan& feature) {
  if (std::has_single_bit(static_cast<uint64_t>(plan.topology.num_scs()))) {
    return PowerOfTwoScs(plan, feature.rotation);
  }
  return AnyNumberOfScs(plan, feature.rotation);
}

// Replaces the payloads of the slice's elements by their samples.
void WriteSamples(const Slice& slice, uint64_t* elements) {
  const auto first_sample =
      static_cast<uint32_t>(slice.samples.first_sample_id);
  for (int64_t r = 0, i = 0; r < slice.samples.size; ++r) {
    for (const int64_t end = slice.FirstId(r + 1); i < end; ++i) {
      elements[i] = SortKey::Element(SortKey::KeyOf(elements[i]),
                                     first_sample + static_cast<uint32_t>(r));
    }
  }
}

// sample_gains[s] is that of sample id s; that of a sample without ids is never
// read.
void WriteSampleGains(Combiner combiner, const Slice& slice,
                      std::span<float> sample_gains) {
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    sample_gains[slice.samples.first_sample_id + r] =
        UnweightedGain(combiner, slice.FirstId(r + 1) - slice.FirstId(r));
  }
}

bool IsFinite(float weight) {
  constexpr uint32_t kExponent = 0x7f800000;
  return (std::bit_cast<uint32_t>(weight) & kExponent) != kExponent;
}

// With combiner sum, for ids whose samples can be computed. Returns whether all
// weights are finite.
bool WriteWeights(std::span<const float> weights, auto sample_of,
                  WeightedId* weighted_ids) {
  bool all_finite = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    all_finite &= IsFinite(weights[i]);
    weighted_ids[i] = {
        .sample = static_cast<int32_t>(sample_of(static_cast<uint32_t>(i))),
        .gain = weights[i]};
  }
  return all_finite;
}

// For any ids and combiner.
bool WriteGains(Combiner combiner, const Slice& slice,
                WeightedId* weighted_ids) {
  bool all_finite = true;
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    const auto sample = static_cast<int32_t>(slice.samples.first_sample_id + r);
    const int64_t begin = slice.FirstId(r);
    const auto weights =
        slice.weights->subspan(begin, slice.FirstId(r + 1) - begin);
    const float divisor = WeightDivisor(combiner, weights);
    for (const float weight : weights) {
      all_finite &= IsFinite(weight);
      *weighted_ids++ = {.sample = sample, .gain = weight / divisor};
    }
  }
  return all_finite;
}

// The same for a feature without weights in a stack that has some.
void WriteUnweightedIds(Combiner combiner, const Slice& slice,
                        WeightedId* weighted_ids) {
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    const int64_t num_ids = slice.FirstId(r + 1) - slice.FirstId(r);
    const WeightedId id = {
        .sample = static_cast<int32_t>(slice.samples.first_sample_id + r),
        .gain = UnweightedGain(combiner, num_ids)};
    weighted_ids = std::fill_n(weighted_ids, num_ids, id);
  }
}

// Where the ids of a SparseCore go. What the stack's gains do not need is
// empty.
struct Output {
  std::span<uint64_t> elements;
  std::span<WeightedId> weighted_ids;  // one per element
  std::span<float> sample_gains;       // one per sample id
};

// What computes the samples of a slice's ids from their positions. Those of
// ragged ids take a pass of their own.
std::optional<std::variant<OrdinalPayload, SamplePayload>> SampleOf(
    const Slice& slice) {
  if (!slice.row_splits.empty()) return std::nullopt;
  const auto first = static_cast<uint32_t>(slice.samples.first_sample_id);
  if (slice.valency == 1) return OrdinalPayload{first};
  if (slice.valency > 1 &&
      slice.num_ids() < (int64_t{1} << 32) / slice.valency) {
    return SamplePayload(first, static_cast<uint32_t>(slice.valency));
  }
  return std::nullopt;
}

// Writes a slice from `position` on. Returns false, with unspecified output, if
// an id is out of range, or a weight is not finite that has to be.
bool WriteSlice(const StackPlan& plan, const FeaturePlan& feature,
                const Slice& slice, int64_t position, const Output& output) {
  uint64_t* const elements = output.elements.data() + position;
  const auto sample_of = SampleOf(slice);
  std::variant<OrdinalPayload, SamplePayload> payload =
      OrdinalPayload{static_cast<uint32_t>(position)};
  if (!plan.has_weights && sample_of) payload = *sample_of;
  const bool in_range = std::visit(
      [&plan, &feature, elements](auto ids, auto locate, auto payload_of) {
        return WriteElements(plan, feature, ids, locate, payload_of, elements);
      },
      slice.ids, LocatorOf(plan, feature), payload);
  if (!in_range) return false;

  if (plan.has_weights) {
    WeightedId* const ids = output.weighted_ids.data() + position;
    if (!slice.weights) {
      WriteUnweightedIds(plan.combiner, slice, ids);
      return true;
    }
    const bool all_finite =
        plan.combiner == Combiner::kSum && sample_of
            ? std::visit(
                  [&slice, ids](auto compute) {
                    return WriteWeights(*slice.weights, compute, ids);
                  },
                  *sample_of)
            : WriteGains(plan.combiner, slice, ids);
    return all_finite ||
           feature.input.non_finite_weights == WeightPolicy::kKeep;
  }
  if (!sample_of) WriteSamples(slice, elements);
  if (!output.sample_gains.empty()) {
    WriteSampleGains(plan.combiner, slice, output.sample_gains);
  }
  return true;
}

}  // namespace

Result<ExtractedIds> ExtractIds(const StackPlan& plan, int64_t local_sc,
                                Scratch& scratch) {
  int64_t num_ids = 0;
  for (const FeaturePlan& feature : plan.features) {
    num_ids += SliceOf(plan, feature, local_sc).num_ids();
  }
  Output output;
  output.elements = scratch.elements.Take(num_ids);
  ExtractedIds extracted = {.elements = {}, .gains = UnitGains{}};
  if (plan.has_weights) {
    output.weighted_ids = scratch.weighted_ids.Take(num_ids);
    extracted.gains = IdGains{output.weighted_ids};
  } else if (plan.combiner != Combiner::kSum) {
    output.sample_gains = scratch.sample_gains.Take(plan.num_sample_ids);
    extracted.gains = SampleGains{output.sample_gains};
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
