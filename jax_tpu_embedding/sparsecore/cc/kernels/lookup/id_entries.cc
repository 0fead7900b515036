// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/default_float_environment.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/locate_row.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"

namespace jte::kernels {
namespace {

// The keys of n ids; returns the largest id. One that is larger than `last_id`
// has the key of that.
template <typename KeyOf, typename Id>
JTE_VECTOR_CLONES Id WriteKeys(const KeyOf& key_of_id, const Id* ids, int64_t n,
                               Id last_id, uint32_t* __restrict keys) {
  const KeyOf key_of = key_of_id;  // a copy, whatever is written
  Id largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Id id = ids[i];
    largest = std::max(largest, id);
    keys[i] = key_of(static_cast<uint32_t>(std::min(id, last_id)));
  }
  return largest;
}

// Entries of n rows with one gain, or with one each.
JTE_VECTOR_CLONES
void ZipRows(const int32_t* rows, int64_t n, float gain,
             WeightedRow* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = {rows[i], gain};
}
JTE_VECTOR_CLONES
void ZipRows(const int32_t* rows, int64_t n, const float* gains,
             WeightedRow* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = {rows[i], gains[i]};
}

// The gains of ids with these weights, of one sample.
JTE_VECTOR_CLONES
void Divide(const float* weights, int64_t n, float divisor, float* gains) {
  for (int64_t i = 0; i < n; ++i) {
    gains[i] = convert::WeightedGain(weights[i], divisor);
  }
}

}  // namespace

RowNumbers::RowNumbers(const convert::StackPlan& plan, int64_t rows_per_shard)
    : sort_key_(plan.sort_key) {
  const Topology& topology = plan.topology;
  const int64_t per_device = topology.num_sc_per_device;
  const int device_bits =
      RowBits(topology.global_device_count, per_device * rows_per_shard);
  for (int64_t sc = 0; sc < topology.num_scs(); ++sc) {
    first_rows_.push_back(static_cast<uint32_t>(
        (sc / per_device << device_bits) + sc % per_device * rows_per_shard));
  }
}

bool IdEntries::WriteGains(const convert::StackPlan& plan,
                           const convert::FeaturePlan& feature,
                           const convert::Slice& slice) {
  const std::span<const float> weights = *slice.weights;
  const bool must_be_finite =
      feature.input.non_finite_weights != convert::WeightPolicy::kKeep;
  if (plan.combiner == convert::Combiner::kSum) {
    gains_ = weights;
    return !must_be_finite || convert::AreFinite(gains_);
  }
  const std::span<float> gains = gains_memory_.Take(weights.size());
  gains_ = gains;
  const std::span<float> divisors = factors_.Take(slice.samples.size);
  convert::Slice from_zero = slice;
  from_zero.samples.first_sample_id = 0;
  convert::WriteSampleFactors(plan.combiner, from_zero, divisors);
  // A divisor is finite only if all weights are, but can overflow although they
  // are, which is an error only where other weights are.
  if (must_be_finite && !convert::AreFinite(divisors) &&
      (feature.input.non_finite_weights == convert::WeightPolicy::kError ||
       !convert::AreFinite(weights))) {
    return false;
  }
  for (int64_t s = 0; s < slice.samples.size; ++s) {
    const int64_t begin = slice.FirstId(s);
    Divide(weights.data() + begin, slice.FirstId(s + 1) - begin, divisors[s],
           gains.data() + begin);
  }
  return true;
}

bool IdEntries::WriteKeysOf(const convert::StackPlan& plan,
                            const convert::FeaturePlan& feature,
                            const convert::Slice& slice) {
  const std::span<uint32_t> keys =
      keys_memory_.Take(slice.num_ids() + SampleSorter::kReadsBehind)
          .first(slice.num_ids());
  keys_ = keys;
  return convert::WithIdToKey(
      plan, feature, [&feature, &slice, keys](const auto& key_of) {
        return std::visit(
            [&feature, &key_of, keys]<typename T>(std::span<const T> ids) {
              // A negative id becomes a large number.
              using Id = std::make_unsigned_t<T>;
              const auto last_id =
                  static_cast<Id>(feature.input.vocabulary_size - 1);
              return WriteKeys(key_of, reinterpret_cast<const Id*>(ids.data()),
                               std::ssize(keys), last_id,
                               keys.data()) <= last_id;
            },
            slice.ids);
      });
}

void IdEntries::WriteEntries(const convert::StackPlan& plan,
                             const convert::Slice& slice,
                             const RowNumbers& numbers) {
  sorter_.Sort({.numbers = keys_.data(),
                .number_bits = plan.sort_key.num_bits(),
                .gains = slice.weights ? gains_.data() : nullptr,
                .combiner = plan.combiner},
               slice.samples.size,
               [&slice](int64_t s) { return slice.FirstId(s); });
  if (!numbers.are_keys()) {
    for (WeightedRow& entry : sorter_.entries()) {
      entry.row = numbers[static_cast<uint32_t>(entry.row)];
    }
  }
  entries_ = sorter_.entries();
  ends_ = sorter_.ends();
}

void IdEntries::WriteSingleEntries(const convert::StackPlan& plan,
                                   const convert::Slice& slice,
                                   const RowNumbers& numbers) {
  const int64_t n = slice.samples.size;
  const std::span<WeightedRow> out = entries_memory_.Take(n);
  const std::span<uint32_t> ends = ends_memory_.Take(n);
  std::iota(ends.begin(), ends.end(), 1);
  entries_ = out;
  ends_ = ends;
  if (!numbers.are_keys()) {
    for (uint32_t& key : keys_) key = static_cast<uint32_t>(numbers[key]);
  }
  const auto* const rows = reinterpret_cast<const int32_t*>(keys_.data());
  if (slice.weights) {
    ZipRows(rows, n, gains_.data(), out.data());
  } else {
    ZipRows(rows, n, convert::UnweightedGain(plan.combiner, 1), out.data());
  }
}

bool IdEntries::Read(const convert::StackPlan& plan,
                     const convert::FeaturePlan& feature,
                     const convert::Slice& slice, const RowNumbers& numbers) {
  const ScopedDefaultFloatEnvironment as_on_hosts;
  if (slice.weights && !WriteGains(plan, feature, slice)) return false;
  if (!WriteKeysOf(plan, feature, slice)) return false;
  if (slice.row_splits.empty() && slice.valency == 1) {
    // Nothing to sort, and no repeats.
    WriteSingleEntries(plan, slice, numbers);
  } else {
    WriteEntries(plan, slice, numbers);
  }
  return true;
}

}  // namespace jte::kernels
