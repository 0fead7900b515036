// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"

namespace jte::convert {
namespace {

// samples[i] = floor((begin + i * step) / 2^32).
JTE_VECTOR_CLONES
void WriteQuotients(uint64_t begin, uint64_t step, int64_t n,
                    uint32_t* samples) {
  for (int64_t i = 0; i < n; ++i) {
    samples[i] = static_cast<uint32_t>(begin >> 32);
    begin += step;
  }
}

}  // namespace

SampleIds::SampleIds(const Slice& slice) : slice_(slice) {
  // Then floor(i / v) is floor(i * multiplier / 2^32): i * multiplier / 2^32 is
  // above i / v by less than i / 2^32 < 1 / v, too little to reach the next
  // number.
  constexpr int64_t kTwoTo32 = int64_t{1} << 32;
  if (slice.row_splits.empty() && slice.valency > 0 &&
      slice.num_ids() < kTwoTo32 / slice.valency) {
    multiplier_ = CeilDiv(kTwoTo32, slice.valency);
  }
}

void SampleIds::Next(int64_t n, uint32_t* samples) {
  if (multiplier_ == 0) return Repeat(n, samples);
  const auto first = static_cast<uint64_t>(slice_.samples.first_sample_id);
  WriteQuotients((first << 32) + position_ * multiplier_, multiplier_, n,
                 samples);
  position_ += n;
}

// Samples have some ids each: most take one or two wide stores, whose excess
// the next sample overwrites.
void SampleIds::Repeat(int64_t n, uint32_t* samples) {
  const int64_t end = position_ + n;
  const auto first = static_cast<uint32_t>(slice_.samples.first_sample_id);
  while (position_ < end) {
    const int64_t end_of_row = slice_.FirstId(row_ + 1);
    const int64_t size = std::min(end_of_row, end) - position_;
    const uint32_t sample = first + static_cast<uint32_t>(row_);
    int64_t done = 0;
    do {
      std::fill_n(samples + done, kSlack, sample);
      done += kSlack;
    } while (done < size);
    samples += size;
    position_ += size;
    if (position_ == end_of_row) ++row_;
  }
}

namespace {

// One id, for messages.
struct Place {
  const FeatureInput& feature;
  int64_t sample;
  int64_t position;
};

// The id to use in place of `id`; none if it is dropped.
template <typename Id>
Result<std::optional<int32_t>> CleanId(const Place& place, Id id) {
  const int64_t vocabulary_size = place.feature.vocabulary_size;
  if (IsInRange(id, vocabulary_size)) return static_cast<int32_t>(id);
  switch (place.feature.out_of_range_ids) {
    case IdPolicy::kDrop:
      return std::nullopt;
    case IdPolicy::kClamp:
      return Nearest(id, vocabulary_size);
    case IdPolicy::kModulo:
      return Modulo(id, vocabulary_size);
    case IdPolicy::kError:
      break;
  }
  return InvalidArgument("Feature '", place.feature.name, "': sample ",
                         place.sample, " has id ", id, " at position ",
                         place.position, ", outside of [0, ", vocabulary_size,
                         "), the range of its table. Map ids into the range, "
                         "raise vocabulary_size, or set the feature's "
                         "out_of_range_ids to 'drop', 'clamp' or 'modulo'.");
}

Result<std::optional<float>> CleanWeight(const Place& place, float weight) {
  if (IsFinite(weight)) return weight;
  switch (place.feature.non_finite_weights) {
    case WeightPolicy::kDrop:
      return std::nullopt;
    case WeightPolicy::kClamp:
      return Clamp(weight);
    case WeightPolicy::kKeep:
      return weight;
    case WeightPolicy::kError:
      break;
  }
  return InvalidArgument("Feature '", place.feature.name, "': sample ",
                         place.sample, " has weight ", weight, " at position ",
                         place.position,
                         ", and weights must be finite. Correct it, or set the "
                         "feature's non_finite_weights to 'drop', 'clamp' or "
                         "'keep'.");
}

// Whether the weights of a sample can be divided by what they are divided by.
Result<void> CheckDivisor(const FeatureInput& feature, Combiner combiner,
                          int64_t sample, std::span<const float> weights) {
  if (feature.non_finite_weights != WeightPolicy::kError ||
      IsFinite(WeightDivisor(combiner, weights))) {
    return {};
  }
  return InvalidArgument(
      "Feature '", feature.name, "': sample ", sample, " has weights whose ",
      combiner == Combiner::kMean ? "sum" : "sum of squares",
      " is more than float32 can hold, and combiner '",
      combiner == Combiner::kMean ? "mean" : "sqrtn",
      "' divides by it. Scale the weights of the sample, which changes no "
      "gain, or set the feature's non_finite_weights to 'keep', with which the "
      "sample reads zeros.");
}

}  // namespace

Slice CleanSlice::View() const {
  Slice slice = {.samples = samples,
                 .ids = std::span<const int32_t>(ids),
                 .weights = std::nullopt,
                 .valency = 0,
                 .row_splits = row_splits};
  if (has_weights) slice.weights = weights;
  return slice;
}

Result<CleanSlice> Clean(const FeatureInput& feature, Combiner combiner,
                         const Slice& slice) {
  CleanSlice clean = {.samples = slice.samples,
                      .ids = {},
                      .weights = {},
                      .row_splits = {0},
                      .has_weights = slice.weights.has_value()};
  const auto append = [&clean, &slice, &feature,
                       combiner](auto ids) -> Result<void> {
    for (int64_t r = 0; r < slice.samples.size; ++r) {
      const int64_t begin = slice.FirstId(r);
      for (int64_t i = begin; i < slice.FirstId(r + 1); ++i) {
        const Place place = {feature, slice.samples.first + r, i - begin};
        JTE_ASSIGN_OR_RETURN(const auto id, CleanId(place, ids[i]));
        if (!id) continue;
        if (slice.weights) {
          JTE_ASSIGN_OR_RETURN(const auto weight,
                               CleanWeight(place, (*slice.weights)[i]));
          if (!weight) continue;
          clean.weights.push_back(*weight);
        }
        clean.ids.push_back(*id);
      }
      const int64_t first = clean.row_splits.back();
      if (slice.weights) {
        JTE_RETURN_IF_ERROR(
            CheckDivisor(feature, combiner, slice.samples.first + r,
                         std::span<const float>(clean.weights).subspan(first)));
      }
      clean.row_splits.push_back(std::ssize(clean.ids));
    }
    return {};
  };
  JTE_RETURN_IF_ERROR(std::visit(append, slice.ids));
  clean.dropped_id_count = slice.num_ids() - std::ssize(clean.ids);
  return clean;
}

}  // namespace jte::convert
