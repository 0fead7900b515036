// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {
namespace {

using convert::Combiner;
using convert::IdPolicy;
using convert::WeightPolicy;

// The ids of a feature, and where what is made of them is.
struct Feature {
  RawIds ids;
  int64_t first_occurrence;
  float* factors;  // of each of its samples; null: it needs none
  int32_t* row_splits_error;
};

// A kernel for several features, which share a launch: there may be dozens of
// them in a stack, with few ids each. A block works for one feature. Called for
// a feature, `kernel` has its numbers from `first` on, in steps of `stride`,
// and kernel.Size() says how many there are.
template <typename Kernel>
struct ForFeatures {
  static constexpr int kThreads = Kernel::kThreads;
  // As many as 4 KiB have room for, the parameters of a kernel everywhere.
  static constexpr int kMostFeatures = 28;
  Kernel kernel;
  int num_features;
  int32_t first_blocks[kMostFeatures + 1];  // and where the last one's end
  Feature features[kMostFeatures];

  void Add(const Feature& feature, int64_t num_blocks) {
    features[num_features] = feature;
    first_blocks[num_features + 1] =
        static_cast<int32_t>(first_blocks[num_features] + num_blocks);
    ++num_features;
  }
  int64_t num_blocks() const { return first_blocks[num_features]; }

  JTE_DEVICE void operator()(const Thread& thread) const {
    // The last feature whose first block is this one or before it.
    int f = 0;
    int last = num_features;
    while (last - f > 1) {
      const int middle = (f + last) / 2;
      if (first_blocks[middle] <= thread.block()) {
        f = middle;
      } else {
        last = middle;
      }
    }
    const int64_t num_blocks = first_blocks[f + 1] - first_blocks[f];
    const int64_t block = thread.block() - first_blocks[f];
    kernel(features[f], block * kThreads + thread.index(),
           num_blocks * kThreads);
  }
};

template <typename Kernel>
const char* LaunchForFeatures(Stream stream, std::span<const Feature> features,
                              const Kernel& kernel) {
  using Shared = ForFeatures<Kernel>;
  static_assert(sizeof(Shared) <= 4096, "Parameters are 4 KiB at most.");
  Shared shared{};
  shared.kernel = kernel;
  for (const Feature& feature : features) {
    const int64_t num_blocks = NumBlocks<Kernel>(kernel.Size(feature));
    if (num_blocks == 0) continue;
    if (shared.num_features == Shared::kMostFeatures) {
      if (const char* error = Launch(stream, shared.num_blocks(), shared)) {
        return error;
      }
      shared.num_features = 0;
    }
    shared.Add(feature, num_blocks);
  }
  return Launch(stream, shared.num_blocks(), shared);
}

struct CheckRowSplits {
  static constexpr int kThreads = 256;
  int32_t* any_error;

  static int64_t Size(const Feature& feature) {
    return feature.ids.row_splits != nullptr ? feature.ids.num_samples + 1 : 0;
  }

  JTE_DEVICE void operator()(const Feature& feature, int64_t first,
                             int64_t stride) const {
    const RawIds& ids = feature.ids;
    const int64_t n = ids.num_samples;
    for (int64_t r = first; r <= n; r += stride) {
      const int32_t split = ids.row_splits[r];
      if (split < (r > 0 ? ids.row_splits[r - 1] : 0) ||
          (r == 0 && split != 0) || (r == n && split > ids.num_ids)) {
        *feature.row_splits_error = 1;
        *any_error = 1;
      }
    }
  }
};

// Where the ids of each sample are, once row splits are checked.
class Samples {
 public:
  JTE_DEVICE explicit Samples(const Feature& feature)
      : ids_(feature.ids),
        are_wrong_(feature.ids.row_splits != nullptr &&
                   *feature.row_splits_error != 0) {}

  JTE_DEVICE bool are_wrong() const { return are_wrong_; }

  // r <= num_samples.
  JTE_DEVICE int64_t FirstId(int64_t r) const {
    if (ids_.row_splits == nullptr) return r * ids_.valency;
    if (!are_wrong_) return ids_.row_splits[r];
    return ids_.num_samples > 0 ? r * ids_.num_ids / ids_.num_samples : 0;
  }

  // The sample of id i, or num_samples behind the last.
  JTE_DEVICE int64_t Of(int64_t i) const {
    if (ids_.row_splits == nullptr) return i / ids_.valency;
    // The first split beyond the id is the end of its sample.
    int64_t first = 0;
    int64_t last = ids_.num_samples;
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      if (FirstId(middle + 1) <= i) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }

 private:
  const RawIds& ids_;
  bool are_wrong_;
};

// An id and its weight, as the policies leave them.
struct CleanId {
  int32_t row;  // of the table
  float weight;
  bool is_kept;
  bool is_wrong;  // whatever its weight: the gain is NaN
  bool is_error;
};

template <typename Id>
JTE_DEVICE int32_t RowOf(Id id, const RawIds& feature, bool& is_in_range) {
  is_in_range = convert::IsInRange(id, feature.vocabulary_size);
  if (is_in_range) return static_cast<int32_t>(id);
  return feature.id_policy == IdPolicy::kModulo
             ? convert::Modulo(id, feature.vocabulary_size)
             : convert::Nearest(id, feature.vocabulary_size);
}

template <typename Id>
JTE_DEVICE int32_t ReadRow(int64_t i, const RawIds& feature,
                           bool& is_in_range) {
  return RowOf(static_cast<const Id*>(feature.ids)[i], feature, is_in_range);
}

JTE_DEVICE int32_t ReadRow(int64_t i, const RawIds& feature,
                           bool& is_in_range) {
  switch (feature.type) {
    case IdType::kInt32:
      return ReadRow<int32_t>(i, feature, is_in_range);
    case IdType::kInt64:
      return ReadRow<int64_t>(i, feature, is_in_range);
    case IdType::kUint32:
      return ReadRow<uint32_t>(i, feature, is_in_range);
    case IdType::kUint64:
      return ReadRow<uint64_t>(i, feature, is_in_range);
  }
  return 0;
}

// What is wrong is kept, to be seen, also if it would be dropped for another
// reason.
JTE_DEVICE CleanId ReadId(int64_t i, const RawIds& feature,
                          bool has_wrong_samples) {
  CleanId id = {};
  bool is_in_range = false;
  id.row = ReadRow(i, feature, is_in_range);
  id.is_wrong = has_wrong_samples ||
                (!is_in_range && feature.id_policy == IdPolicy::kError);
  id.is_kept = is_in_range || feature.id_policy != IdPolicy::kDrop;
  if (feature.weights != nullptr) {
    id.weight = feature.weights[i];
    if (!convert::IsFinite(id.weight)) {
      switch (feature.weight_policy) {
        case WeightPolicy::kError:
          id.weight = __builtin_nanf("");
          id.is_error = id.is_kept || id.is_wrong;
          break;
        case WeightPolicy::kDrop:
          id.is_kept = false;
          break;
        case WeightPolicy::kClamp:
          id.weight = convert::Clamp(id.weight);
          break;
        case WeightPolicy::kKeep:
          break;
      }
    }
  }
  id.is_kept |= id.is_wrong;
  id.is_error |= id.is_wrong;
  return id;
}

// Whether gains of a feature need a factor of each sample. Without weights, and
// if no id is dropped, they follow from the number of the sample's ids.
bool NeedsFactors(const RawIds& ids, Combiner combiner) {
  return combiner != Combiner::kSum &&
         (ids.weights != nullptr || ids.id_policy == IdPolicy::kDrop);
}

// Of each sample: without weights the gain of its ids, with weights what these
// are divided by. A thread has a sample, whose weights are added in their
// order.
struct FindFactors {
  static constexpr int kThreads = 128;
  Combiner combiner;

  static int64_t Size(const Feature& feature) {
    return feature.factors != nullptr ? feature.ids.num_samples : 0;
  }

  JTE_DEVICE void operator()(const Feature& feature, int64_t first,
                             int64_t stride) const {
    const RawIds& ids = feature.ids;
    const Samples samples(feature);
    for (int64_t s = first; s < ids.num_samples; s += stride) {
      const int64_t begin = samples.FirstId(s);
      const int64_t end = samples.FirstId(s + 1);
      feature.factors[s] =
          ids.weights == nullptr
              ? convert::UnweightedGain(
                    combiner, NumKept(ids, begin, end, samples.are_wrong()))
              : Divisor(ids, begin, end, samples.are_wrong());
    }
  }

  static JTE_DEVICE int64_t NumKept(const RawIds& ids, int64_t begin,
                                    int64_t end, bool has_wrong_samples) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      count += ReadId(i, ids, has_wrong_samples).is_kept;
    }
    return count;
  }

  JTE_DEVICE float Divisor(const RawIds& ids, int64_t begin, int64_t end,
                           bool has_wrong_samples) const {
    float sum = 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      const CleanId id = ReadId(i, ids, has_wrong_samples);
      if (!id.is_kept) continue;
      if (combiner == Combiner::kMean) {
        sum += id.weight;
      } else {
        sum = convert::AddSquare(sum, id.weight);
      }
    }
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }
};

// A thread has an id.
struct WriteOccurrences {
  static constexpr int kThreads = 256;
  ConversionGeometry geometry;
  int32_t* any_error;
  Occurrences occurrences;

  static int64_t Size(const Feature& feature) { return feature.ids.num_ids; }

  JTE_DEVICE void operator()(const Feature& feature, int64_t first,
                             int64_t stride) const {
    const RawIds& ids = feature.ids;
    const Samples samples(feature);
    for (int64_t i = first; i < ids.num_ids; i += stride) {
      const int64_t place = feature.first_occurrence + i;
      const int64_t sample = samples.Of(i);
      if (sample == ids.num_samples) {
        LeaveOut(place);
        continue;
      }
      CleanId id = ReadId(i, ids, samples.are_wrong());
      // Finite weights can add up to what is not.
      if (feature.factors != nullptr && ids.weights != nullptr && id.is_kept &&
          ids.weight_policy == WeightPolicy::kError &&
          !convert::IsFinite(feature.factors[sample])) {
        id.is_error = true;
        id.weight = __builtin_nanf("");
      }
      if (id.is_error) *any_error = 1;
      if (!id.is_kept) {
        LeaveOut(place);
        continue;
      }
      const int64_t position = ids.samples_before + sample;
      const int64_t sc = position / ids.samples_per_sc;
      const int64_t shard =
          (id.row % geometry.num_shards + ids.rotation) % geometry.num_shards;
      Write(place, sc * geometry.num_shards + shard,
            id.row / geometry.num_shards + ids.first_row,
            position % ids.samples_per_sc + ids.first_sample_id,
            id.is_wrong ? __builtin_nanf("")
                        : Gain(feature, samples, sample, id));
    }
  }

  JTE_DEVICE float Gain(const Feature& feature, const Samples& samples,
                        int64_t sample, const CleanId& id) const {
    const bool is_sum = geometry.combiner == Combiner::kSum;
    if (feature.ids.weights != nullptr) {
      return is_sum ? id.weight
                    : convert::WeightedGain(id.weight, feature.factors[sample]);
    }
    if (is_sum) return 1.0f;
    if (feature.factors != nullptr) return feature.factors[sample];
    return convert::UnweightedGain(
        geometry.combiner,
        samples.FirstId(sample + 1) - samples.FirstId(sample));
  }

  JTE_DEVICE void LeaveOut(int64_t place) const {
    Write(place, geometry.num_sc_per_device * geometry.num_shards, 0, 0, 0.0f);
  }

  JTE_DEVICE void Write(int64_t place, int64_t block, int64_t row,
                        int64_t sample, float gain) const {
    occurrences.blocks[place] = static_cast<int32_t>(block);
    occurrences.rows[place] = static_cast<int32_t>(row);
    occurrences.samples[place] = static_cast<int32_t>(sample);
    occurrences.gains[place] = gain;
    occurrences.keys[place] = SortWord(geometry, block, row, 0);
    occurrences.order[place] = static_cast<int32_t>(place);
  }
};

}  // namespace

const char* FindOccurrences(Stream stream, std::span<const RawIds> features,
                            const ConversionGeometry& geometry, float* factors,
                            const ConversionErrors& errors,
                            const Occurrences& occurrences) {
  std::vector<Feature> all;
  int64_t num_ids = 0;
  for (const RawIds& ids : features) {
    const bool needs_factors = NeedsFactors(ids, geometry.combiner);
    all.push_back({.ids = ids,
                   .first_occurrence = num_ids,
                   .factors = needs_factors ? factors : nullptr,
                   .row_splits_error = errors.row_splits + all.size()});
    num_ids += ids.num_ids;
    factors += ids.num_samples;
  }
  if (const char* error =
          LaunchForFeatures(stream, all, CheckRowSplits{errors.any})) {
    return error;
  }
  if (const char* error =
          LaunchForFeatures(stream, all, FindFactors{geometry.combiner})) {
    return error;
  }
  return LaunchForFeatures(stream, all,
                           WriteOccurrences{geometry, errors.any, occurrences});
}

}  // namespace jte::gpu
