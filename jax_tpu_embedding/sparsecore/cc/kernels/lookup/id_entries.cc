// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/default_float_environment.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/locate_row.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sort_lanes.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"

namespace jte::kernels {
namespace {

using convert::SortKey;

// No id has this key: a row is below 2^31 / num_scs.
constexpr uint32_t kNoKey = ~uint32_t{0};

struct KeyAndGain {
  uint32_t key;
  float gain;
};

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
  const std::span<float> gains = gains_memory_.Take(weights.size());
  gains_ = gains;
  if (plan.combiner == convert::Combiner::kSum) {
    std::ranges::copy(weights, gains.begin());
    return !must_be_finite || convert::AreFinite(gains);
  }
  const std::span<float> divisors = factors_.Take(slice.samples.size);
  convert::Slice from_zero = slice;
  from_zero.samples.first_sample_id = 0;
  convert::WriteSampleFactors(plan.combiner, from_zero, divisors);
  // A divisor is finite only if all weights are, but can overflow although they
  // are.
  if (must_be_finite && !convert::AreFinite(divisors) &&
      !convert::AreFinite(weights)) {
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
  const std::span<uint32_t> keys = keys_memory_.Take(slice.num_ids());
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
  const int64_t num_samples = slice.samples.size;
  const uint32_t* const keys = keys_.data();
  const float* const gains = slice.weights ? gains_.data() : nullptr;
  const bool are_numbers = numbers.are_keys();
  const auto number = [&numbers, are_numbers](uint32_t key) {
    return are_numbers ? static_cast<int32_t>(key) : numbers[key];
  };
  const auto size_of = [&slice](int64_t sample) {
    return slice.FirstId(sample + 1) - slice.FirstId(sample);
  };
  WeightedRow* const out = entries_memory_.Take(slice.num_ids()).data();
  ends_ = ends_memory_.Take(num_samples);
  int64_t num_entries = 0;

  // Entries of a sample from its n sorted ids; id_at(i) is the key and the gain
  // of the i-th.
  const auto merge = [out, &number, &num_entries](int64_t n,
                                                  const auto& id_at) {
    uint32_t previous = kNoKey;
    for (int64_t i = 0; i < n; ++i) {
      const auto [key, gain] = id_at(i);
      if (key == previous) {
        out[num_entries - 1].gain += gain;
      } else {
        out[num_entries++] = {number(key), gain};
      }
      previous = key;
    }
  };

  // A sample of many ids.
  const auto read_long_sample = [this, gains, &plan, &slice, &size_of, keys,
                                 &merge](int64_t sample) {
    const int64_t begin = slice.FirstId(sample);
    const int64_t n = size_of(sample);
    const std::span<uint64_t> elements = elements_.Take(n);
    for (int64_t i = 0; i < n; ++i) {
      elements[i] = SortKey::Element(keys[begin + i], static_cast<uint32_t>(i));
    }
    const std::span<uint64_t> sorted = convert::SortElements(
        elements, sorted_elements_.Take(n), plan.sort_key.num_bits());
    const float gain = convert::UnweightedGain(plan.combiner, n);
    merge(n, [sorted, begin, gains, gain](int64_t i) {
      return KeyAndGain{SortKey::KeyOf(sorted[i]),
                        gains != nullptr
                            ? gains[begin + SortKey::PayloadOf(sorted[i])]
                            : gain};
    });
  };

  // Puts what make(key, position) says into the lanes, for samples from `first`
  // on, and sorts them.
  const auto sort_lanes = [this, keys, &slice, &size_of](
                              int64_t first, int64_t num_lanes, int64_t most,
                              auto padding, const auto& make) {
    using Value = decltype(padding);
    auto* const values = reinterpret_cast<Value*>(
        lanes_.Take(kLanes * std::max<int64_t>(most, 1)).data());
    for (int64_t k = 0; k < kLanes; ++k) {
      const int64_t begin = k < num_lanes ? slice.FirstId(first + k) : 0;
      const int64_t n = k < num_lanes ? size_of(first + k) : 0;
      for (int64_t i = 0; i < n; ++i) {
        values[i * kLanes + k] = make(keys[begin + i], i);
      }
      for (int64_t i = n; i < most; ++i) values[i * kLanes + k] = padding;
    }
    SortLanes(values, most);
    return values;
  };

  // pack(key, position): what to sort; unpack: these two of it.
  const auto read_lanes_with_weights =
      [this, gains, &slice, &size_of, &sort_lanes, &merge, &num_entries](
          int64_t first, int64_t num_lanes, int64_t most, auto padding,
          const auto& pack, const auto& unpack) {
        const auto* const values =
            sort_lanes(first, num_lanes, most, padding, pack);
        for (int64_t k = 0; k < num_lanes; ++k) {
          const int64_t begin = slice.FirstId(first + k);
          merge(size_of(first + k),
                [values, k, begin, gains, &unpack](int64_t i) {
                  const auto [key, position] = unpack(values[i * kLanes + k]);
                  return KeyAndGain{key, gains[begin + position]};
                });
          ends_[first + k] = static_cast<uint32_t>(num_entries);
        }
      };

  struct KeyAndPosition {
    uint32_t key;
    uint32_t position;
  };
  const auto read_wide_lanes = [&read_lanes_with_weights](int64_t first,
                                                          int64_t num_lanes,
                                                          int64_t most) {
    // Signed, of which more machines have the minimum; without the top bit
    // of keys, the order is the same.
    constexpr uint64_t kSign = uint64_t{1} << 63;
    read_lanes_with_weights(
        first, num_lanes, most, std::numeric_limits<int64_t>::max(),
        [](uint32_t key, int64_t position) {
          return static_cast<int64_t>(
              SortKey::Element(key, static_cast<uint32_t>(position)) ^ kSign);
        },
        [](int64_t value) {
          const uint64_t element = static_cast<uint64_t>(value) ^ kSign;
          return KeyAndPosition{SortKey::KeyOf(element),
                                SortKey::PayloadOf(element)};
        });
  };

  // Where a key and a position have 32 bits together, two of them are sorted in
  // the time of one.
  const auto read_narrow_lanes = [&read_lanes_with_weights](
                                     int64_t first, int64_t num_lanes,
                                     int64_t most, int position_bits) {
    read_lanes_with_weights(
        first, num_lanes, most, kNoKey,
        [position_bits](uint32_t key, int64_t position) {
          return key << position_bits | static_cast<uint32_t>(position);
        },
        [position_bits](uint32_t value) {
          return KeyAndPosition{value >> position_bits,
                                value & ((1u << position_bits) - 1)};
        });
  };

  const auto read_lanes = [this, out, &plan, &number, &size_of, &sort_lanes,
                           &merge, &num_entries](
                              int64_t first, int64_t num_lanes, int64_t most) {
    const uint32_t* const sorted =
        sort_lanes(first, num_lanes, most, kNoKey,
                   [](uint32_t key, int64_t) { return key; });
    uint32_t repeats[kLanes];
    FindRepeats(sorted, most, repeats);
    for (int64_t k = 0; k < num_lanes; ++k) {
      const int64_t n = size_of(first + k);
      const float gain = convert::UnweightedGain(plan.combiner, n);
      if (repeats[k] != 0) {
        merge(n, [sorted, k, gain](int64_t i) {
          return KeyAndGain{sorted[i * kLanes + k], gain};
        });
      } else {
        for (int64_t i = 0; i < n; ++i) {
          out[num_entries + i] = {number(sorted[i * kLanes + k]), gain};
        }
        num_entries += n;
      }
      ends_[first + k] = static_cast<uint32_t>(num_entries);
    }
  };

  for (int64_t first = 0; first < num_samples; first += kLanes) {
    const int64_t num_lanes = std::min(kLanes, num_samples - first);
    int64_t most = 0;
    for (int64_t s = first; s < first + num_lanes; ++s) {
      most = std::max(most, size_of(s));
    }
    if (most > kMaxNetworkIds) {
      for (int64_t s = first; s < first + num_lanes; ++s) {
        read_long_sample(s);
        ends_[s] = static_cast<uint32_t>(num_entries);
      }
    } else if (gains != nullptr) {
      const int position_bits = std::bit_width(static_cast<uint64_t>(most));
      if (plan.sort_key.num_bits() + position_bits <= 32) {
        read_narrow_lanes(first, num_lanes, most, position_bits);
      } else {
        read_wide_lanes(first, num_lanes, most);
      }
    } else {
      read_lanes(first, num_lanes, most);
    }
  }
  entries_ = {out, static_cast<size_t>(num_entries)};
}

void IdEntries::WriteSingleEntries(const convert::StackPlan& plan,
                                   const convert::Slice& slice,
                                   const RowNumbers& numbers) {
  const int64_t n = slice.samples.size;
  const std::span<WeightedRow> out = entries_memory_.Take(n);
  entries_ = out;
  ends_ = ends_memory_.Take(n);
  std::iota(ends_.begin(), ends_.end(), 1);
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
