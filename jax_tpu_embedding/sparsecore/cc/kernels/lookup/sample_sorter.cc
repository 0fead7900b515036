// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_registers.h"

namespace jte::kernels {

using convert::SortKey;

WeightedRow* SampleSorter::SortLong(const UnsortedIds& ids, int64_t begin,
                                    int64_t end, float same_gain,
                                    WeightedRow* out) {
  const int64_t n = end - begin;
  const std::span<uint64_t> elements = elements_.Take(n);
  for (int64_t i = 0; i < n; ++i) {
    elements[i] =
        SortKey::Element(ids.numbers[begin + i], static_cast<uint32_t>(i));
  }
  const std::span<uint64_t> sorted = convert::SortElements(
      elements, sorted_elements_.Take(n), ids.number_bits);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t number = SortKey::KeyOf(sorted[i]);
    const float gain = ids.gains == nullptr
                           ? same_gain
                           : ids.gains[begin + SortKey::PayloadOf(sorted[i])];
    if (i > 0 && number == SortKey::KeyOf(sorted[i - 1])) {
      out[-1].gain += gain;
    } else {
      *out++ = {static_cast<int32_t>(number), gain};
    }
  }
  return out;
}

WeightedRow* SampleSorter::SortSome(const UnsortedIds& ids,
                                    const SampleLanes::Begins& begins,
                                    const WeightedRow* first, WeightedRow* out,
                                    uint32_t* ends) {
  const bool has_gains = ids.gains != nullptr;
  int64_t most_ids = 0;
  std::array<float, kSamples> same_gains = {};
  for (int64_t k = 0; k < kSamples; ++k) {
    const int64_t n = begins[k + 1] - begins[k];
    most_ids = std::max(most_ids, n);
    if (!has_gains) same_gains[k] = convert::UnweightedGain(ids.combiner, n);
  }
  if (most_ids <= 1) {
    for (int64_t k = 0; k < kSamples; ++k) {
      if (begins[k] < begins[k + 1]) {
        *out++ = {static_cast<int32_t>(ids.numbers[begins[k]]),
                  has_gains ? ids.gains[begins[k]] : same_gains[k]};
      }
      ends[k] = static_cast<uint32_t>(out - first);
    }
    return out;
  }
  if (ShouldSortInRegisters(ids.number_bits, has_gains, most_ids)) {
    return SortInRegisters({.numbers = ids.numbers,
                            .begins = begins,
                            .most_ids = most_ids,
                            .gains = ids.gains,
                            .same_gains = same_gains.data()},
                           first, out, ends);
  }
  const bool are_in_lanes = most_ids <= SampleLanes::kMaxIds;
  if (are_in_lanes && has_gains) {
    lanes_.Sort(ids.numbers, begins, ids.number_bits, ids.gains);
  } else if (are_in_lanes) {
    lanes_.Sort(ids.numbers, begins, same_gains);
  }
  for (int64_t k = 0; k < kSamples; ++k) {
    out = are_in_lanes
              ? lanes_.Write(k, out)
              : SortLong(ids, begins[k], begins[k + 1], same_gains[k], out);
    ends[k] = static_cast<uint32_t>(out - first);
  }
  return out;
}

}  // namespace jte::kernels
