// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/locate_row.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"

namespace jte::convert {
namespace {

// Returns the largest id. Their type is unsigned, which makes a negative id a
// large number.
template <typename Id, typename KeyOf>
[[gnu::always_inline]] inline Id WriteAll(const KeyOf& key_of_any,
                                          const Id* ids, int64_t n,
                                          const uint32_t* payloads,
                                          uint64_t* elements) {
  // A local copy: the compiler need not assume that what the loop writes is
  // part of it.
  const KeyOf key_of = key_of_any;
  Id largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    // Read once: the caller may write it meanwhile, and the key has to be that
    // of the id that is checked.
    const Id id = ids[i];
    // A flag instead would keep GCC 12 from vectorizing the loop.
    largest = std::max(largest, id);
    elements[i] =
        SortKey::Element(key_of(static_cast<uint32_t>(id)), payloads[i]);
  }
  return largest;
}

JTE_VECTOR_CLONES
uint32_t Write(const IdToKey<PowerOfTwoScs>& key_of, const uint32_t* ids,
               int64_t n, const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint64_t Write(const IdToKey<PowerOfTwoScs>& key_of, const uint64_t* ids,
               int64_t n, const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint32_t Write(const IdToKey<AnyNumberOfScs>& key_of, const uint32_t* ids,
               int64_t n, const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

JTE_VECTOR_CLONES
uint64_t Write(const IdToKey<AnyNumberOfScs>& key_of, const uint64_t* ids,
               int64_t n, const uint32_t* payloads, uint64_t* elements) {
  return WriteAll(key_of, ids, n, payloads, elements);
}

// Writes the elements of the n ids from `begin` on, with payloads[i] for the
// i-th of them. Returns false if an id is outside of the feature's table; its
// element is then meaningless.
//
// CPU time per id: 0.3 ns with AVX-512, 0.4 with AVX2, 0.7 without; twice as
// much if the number of SparseCores is no power of two.
bool WriteElements(const StackPlan& plan, const FeaturePlan& feature,
                   const IdSpan& ids, int64_t begin, int64_t n,
                   const uint32_t* payloads, uint64_t* elements) {
  return WithIdToKey(
      plan, feature,
      [&feature, &ids, begin, n, payloads, elements](const auto& key_of) {
        return std::visit(
            [&feature, &key_of, begin, n, payloads,
             elements]<typename Id>(std::span<const Id> all) {
              const auto* const unsigned_ids =
                  reinterpret_cast<const std::make_unsigned_t<Id>*>(all.data());
              return Write(key_of, unsigned_ids + begin, n, payloads,
                           elements) <
                     static_cast<uint64_t>(feature.input.vocabulary_size);
            },
            ids);
      });
}

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

// Writes the payloads of the n ids from position `first` on. Without
// position_bits, these are the positions.
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

// Requires a slice with weights. What they are divided by is finite only if all
// of them are, but can overflow although all of them are finite, which is an
// error only where other weights are.
bool WeightsAreFinite(Combiner combiner, WeightPolicy policy,
                      const Slice& slice,
                      std::span<const float> sample_factors) {
  if (combiner != Combiner::kSum) {
    const bool is_finite = AreFinite(sample_factors.subspan(
        slice.samples.first_sample_id, slice.samples.size));
    if (is_finite || policy == WeightPolicy::kError) return is_finite;
  }
  return AreFinite(*slice.weights);
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
      !WeightsAreFinite(plan.combiner, feature.input.non_finite_weights, slice,
                        output.sample_factors)) {
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
    num_ids += NumIdsOf(plan, feature, local_sc);
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
    JTE_ASSIGN_OR_RETURN(const auto clean,
                         Clean(feature.input, plan.combiner, slice));
    WriteSlice(plan, feature, clean.View(), position, output);
    position += std::ssize(clean.ids);
    extracted.dropped_id_count += clean.dropped_id_count;
  }
  extracted.elements = output.elements.first(position);
  return extracted;
}

Result<SortedIds> SortIds(const StackPlan& plan, int64_t local_sc,
                          Scratch& scratch) {
  JTE_ASSIGN_OR_RETURN(const auto extracted,
                       ExtractIds(plan, local_sc, scratch));
  const std::span<uint64_t> elements = extracted.elements;
  const std::span<uint64_t> buffer =
      scratch.sorted_elements.Take(elements.size());
  const std::span<uint64_t> sorted =
      SortElements(elements, buffer, plan.sort_key.num_bits());
  return SortedIds{
      .elements = sorted,
      .spare = sorted.data() == elements.data() ? buffer : elements,
      .gains = extracted.gains,
      .dropped_id_count = extracted.dropped_id_count};
}

}  // namespace jte::convert
