// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"

namespace jte::convert {
namespace {

// Left to plain loads: gather instructions take twice the time.
void LookUp(const uint32_t* samples, const float* factors, int64_t n,
            float* __restrict gains) {
  for (int64_t i = 0; i < n; ++i) gains[i] = factors[samples[i]];
}

// Replaces divisors by the gains of ids with these weights.
JTE_VECTOR_CLONES
void Divide(const float* weights, int64_t n, float* __restrict gains) {
  for (int64_t i = 0; i < n; ++i) {
    gains[i] = WeightedGain(weights[i], gains[i]);
  }
}

// Sums of weights from left to right, which WeightDivisor has, for the mean.
//
// What rows cost is that nobody can predict where they end: 0.60 ns per id for
// rows of 0 to 40. So up to 4 of the weights behind a row are read, and not
// added: 0.49 ns.
void SumRows(const Slice& slice, float* sums) {
  const std::span<const float> weights = *slice.weights;
  constexpr int64_t kStep = 4;
  constexpr uint32_t kMinusZero = 0x80000000;  // adds nothing to any float
  int64_t i = 0;
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    const int64_t end = slice.FirstId(r + 1);
    if (end + kStep > std::ssize(weights)) {
      sums[r] = WeightDivisor(Combiner::kMean, weights.subspan(i, end - i));
      i = end;
      continue;
    }
    float sum = 0.0f;
    for (; i + kStep <= end; i += kStep) {
      for (int64_t k = 0; k < kStep; ++k) sum += weights[i + k];
    }
    for (int64_t k = 0; k < kStep; ++k) {
      const uint32_t all_bits_if_in_row = uint32_t{i + k >= end} - 1;
      sum += std::bit_cast<float>(
          (std::bit_cast<uint32_t>(weights[i + k]) & all_bits_if_in_row) |
          (kMinusZero & ~all_bits_if_in_row));
    }
    i = end;
    sums[r] = sum;
  }
}

}  // namespace

void WriteSampleFactors(Combiner combiner, const Slice& slice,
                        std::span<float> factors) {
  float* const of_slice = factors.data() + slice.samples.first_sample_id;
  if (slice.weights && combiner == Combiner::kMean) {
    return SumRows(slice, of_slice);
  }
  int64_t begin = 0;
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    const int64_t end = slice.FirstId(r + 1);
    of_slice[r] = slice.weights
                      ? WeightDivisor(combiner, slice.weights->subspan(
                                                    begin, end - begin))
                      : UnweightedGain(combiner, end - begin);
    begin = end;
  }
}

void WriteIdGains(Combiner combiner, const Slice& slice, int64_t begin,
                  int64_t n, const uint32_t* samples,
                  std::span<const float> factors, float* gains) {
  if (!slice.weights) return LookUp(samples, factors.data(), n, gains);
  const float* const weights = slice.weights->data() + begin;
  if (combiner == Combiner::kSum) {
    std::copy_n(weights, n, gains);
    return;
  }
  LookUp(samples, factors.data(), n, gains);
  Divide(weights, n, gains);
}

JTE_VECTOR_CLONES
void ZipIds(const uint32_t* samples, const float* gains, int64_t n,
            WeightedId* ids) {
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = {.sample = static_cast<int32_t>(samples[i]), .gain = gains[i]};
  }
}

JTE_VECTOR_CLONES
bool AreFinite(std::span<const float> weights) {
  constexpr uint32_t kSign = 0x80000000;
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t largest = 0;  // of the magnitudes' bits
  for (const float weight : weights) {
    largest = std::max(largest, std::bit_cast<uint32_t>(weight) & ~kSign);
  }
  return largest < kInfinity;
}

}  // namespace jte::convert
