// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Samples whose ids are to be sorted, for tests, and what shall come of them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_UNSORTED_SAMPLES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_UNSORTED_SAMPLES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"

namespace jte::kernels {

// {number, gain} of each number of a sample.
using Sums = std::vector<std::pair<uint32_t, float>>;

struct Samples {
  std::vector<uint32_t> numbers;  // and SampleLanes::kReadsBehind more
  std::vector<float> gains;       // of each number
  SampleLanes::Begins begins = {};
  std::array<float, SampleLanes::kLanes> same_gains = {};

  int64_t size(int64_t sample) const {
    return begins[sample + 1] - begins[sample];
  }
};

// Samples of up to `most` ids, half of which are among a few that repeat.
inline Samples RandomSamples(int64_t most, int number_bits,
                             std::mt19937_64& random) {
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  // All bits set is no number.
  const uint64_t last = (uint64_t{1} << number_bits) - 1 - (number_bits == 32);
  Samples samples;
  for (int64_t k = 0; k < SampleLanes::kLanes; ++k) {
    const auto size = static_cast<int64_t>(random() % (most + 1));
    for (int64_t i = 0; i < size; ++i) {
      const uint64_t number =
          random() % 2 == 0 ? last - random() % 4 : random() % (last + 1);
      samples.numbers.push_back(static_cast<uint32_t>(number & last));
      samples.gains.push_back(uniform(random));
    }
    samples.begins[k + 1] = std::ssize(samples.numbers);
    samples.same_gains[k] = uniform(random);
  }
  samples.numbers.resize(samples.numbers.size() + SampleLanes::kReadsBehind,
                         0xdeadbeef);
  return samples;
}

// One number after the other, where number i has gain_of(i).
template <typename GainOf>
Sums SumGains(std::span<const uint32_t> numbers, const GainOf& gain_of) {
  std::map<uint32_t, float> sums;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [place, is_new] = sums.try_emplace(numbers[i], gain_of(i));
    if (!is_new) place->second += gain_of(i);
  }
  return {sums.begin(), sums.end()};
}

inline Sums ExpectedSums(const Samples& samples, int64_t sample,
                         bool has_gains) {
  const int64_t begin = samples.begins[sample];
  return SumGains(
      std::span(samples.numbers).subspan(begin, samples.size(sample)),
      [&](size_t i) {
        return has_gains ? samples.gains[begin + i]
                         : samples.same_gains[sample];
      });
}

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TESTING_UNSORTED_SAMPLES_H_
