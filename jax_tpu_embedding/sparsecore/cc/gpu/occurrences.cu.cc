// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"

#include <cmath>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {
namespace {

using convert::Combiner;
using convert::IdPolicy;
using convert::WeightPolicy;

struct CheckRowSplits {
  static constexpr int kThreads = 256;
  RawIds feature;
  ConversionErrors* errors;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t n = feature.num_samples;
    for (int64_t r = thread.number(); r <= n; r += thread.num_threads()) {
      const int32_t split = feature.row_splits[r];
      if (split < (r > 0 ? feature.row_splits[r - 1] : 0) ||
          (r == 0 && split != 0) || (r == n && split > feature.num_ids)) {
        errors->row_splits = 1;
        errors->any = 1;
      }
    }
  }
};

// Where the ids of each sample are, once row splits are checked.
class Samples {
 public:
  JTE_DEVICE Samples(const RawIds& feature, const ConversionErrors* errors)
      : feature_(feature),
        are_wrong_(feature.row_splits != nullptr && errors->row_splits != 0) {}

  JTE_DEVICE bool are_wrong() const { return are_wrong_; }

  // r <= num_samples.
  JTE_DEVICE int64_t FirstId(int64_t r) const {
    if (feature_.row_splits == nullptr) return r * feature_.valency;
    if (!are_wrong_) return feature_.row_splits[r];
    return feature_.num_samples > 0
               ? r * feature_.num_ids / feature_.num_samples
               : 0;
  }

  // The sample of id i, or num_samples behind the last.
  JTE_DEVICE int64_t Of(int64_t i) const {
    if (feature_.row_splits == nullptr) return i / feature_.valency;
    // The first split beyond the id is the end of its sample.
    int64_t first = 0;
    int64_t last = feature_.num_samples;
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
  const RawIds& feature_;
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

// Of each sample: without weights the gain of its ids, with weights what these
// are divided by. A thread has a sample, whose weights are added in their
// order.
struct FindFactors {
  static constexpr int kThreads = 128;
  RawIds feature;
  Combiner combiner;
  const ConversionErrors* errors;
  float* factors;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const Samples samples(feature, errors);
    for (int64_t s = thread.number(); s < feature.num_samples;
         s += thread.num_threads()) {
      const int64_t begin = samples.FirstId(s);
      const int64_t end = samples.FirstId(s + 1);
      if (feature.weights == nullptr) {
        factors[s] = convert::UnweightedGain(
            combiner, NumKept(begin, end, samples.are_wrong()));
      } else {
        factors[s] = Divisor(begin, end, samples.are_wrong());
      }
    }
  }

  JTE_DEVICE int64_t NumKept(int64_t begin, int64_t end,
                             bool has_wrong_samples) const {
    if (feature.id_policy != IdPolicy::kDrop) return end - begin;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      count += ReadId(i, feature, has_wrong_samples).is_kept;
    }
    return count;
  }

  JTE_DEVICE float Divisor(int64_t begin, int64_t end,
                           bool has_wrong_samples) const {
    float sum = 0.0f;
    for (int64_t i = begin; i < end; ++i) {
      const CleanId id = ReadId(i, feature, has_wrong_samples);
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
  RawIds feature;
  Combiner combiner;
  int64_t num_shards;
  int64_t num_sc_per_device;
  const float* factors;  // unless the combiner is kSum
  ConversionErrors* errors;
  Occurrences occurrences;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const Samples samples(feature, errors);
    for (int64_t i = thread.number(); i < feature.num_ids;
         i += thread.num_threads()) {
      const int64_t sample = samples.Of(i);
      if (sample == feature.num_samples) {
        LeaveOut(i);
        continue;
      }
      const CleanId id = ReadId(i, feature, samples.are_wrong());
      if (id.is_error) errors->any = 1;
      if (!id.is_kept) {
        LeaveOut(i);
        continue;
      }
      const int64_t position = feature.samples_before + sample;
      const int64_t sc = position / feature.samples_per_sc;
      const int64_t shard =
          (id.row % num_shards + feature.rotation) % num_shards;
      occurrences.blocks[i] = static_cast<int32_t>(sc * num_shards + shard);
      occurrences.rows[i] =
          static_cast<int32_t>(id.row / num_shards + feature.first_row);
      occurrences.samples[i] = static_cast<int32_t>(
          position % feature.samples_per_sc + feature.first_sample_id);
      occurrences.gains[i] =
          id.is_wrong ? __builtin_nanf("") : Gain(id, sample);
    }
  }

  JTE_DEVICE float Gain(const CleanId& id, int64_t sample) const {
    if (feature.weights == nullptr) {
      return combiner == Combiner::kSum ? 1.0f : factors[sample];
    }
    return combiner == Combiner::kSum
               ? id.weight
               : convert::WeightedGain(id.weight, factors[sample]);
  }

  JTE_DEVICE void LeaveOut(int64_t i) const {
    occurrences.blocks[i] =
        static_cast<int32_t>(num_sc_per_device * num_shards);
    occurrences.rows[i] = 0;
    occurrences.samples[i] = 0;
    occurrences.gains[i] = 0.0f;
  }
};

}  // namespace

const char* FindOccurrences(Stream stream, const RawIds& feature,
                            Combiner combiner, int64_t num_shards,
                            int64_t num_sc_per_device, float* factors,
                            ConversionErrors* errors,
                            const Occurrences& occurrences) {
  if (feature.row_splits != nullptr) {
    if (const char* error = FillWithZeros(stream, &errors->row_splits,
                                          sizeof(errors->row_splits))) {
      return error;
    }
    if (const char* error =
            Launch(stream, NumBlocks<CheckRowSplits>(feature.num_samples + 1),
                   CheckRowSplits{feature, errors})) {
      return error;
    }
  }
  if (combiner != Combiner::kSum) {
    if (const char* error =
            Launch(stream, NumBlocks<FindFactors>(feature.num_samples),
                   FindFactors{feature, combiner, errors, factors})) {
      return error;
    }
  }
  return Launch(
      stream, NumBlocks<WriteOccurrences>(feature.num_ids),
      WriteOccurrences{feature, combiner, num_shards, num_sc_per_device,
                       factors, errors, occurrences});
}

}  // namespace jte::gpu
