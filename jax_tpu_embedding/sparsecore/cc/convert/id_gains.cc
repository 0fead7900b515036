// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/id_gains.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte {
namespace {

// Left to plain loads: gather instructions take twice the time.
void LookUp(const uint32_t* samples, const float* factors, int64_t n,
            float* __restrict gains) {
  for (int64_t i = 0; i < n; ++i) gains[i] = factors[samples[i]];
}

// gains[i] = weights[i] / gains[i].
JTE_VECTOR_CLONES
void Divide(const float* weights, int64_t n, float* __restrict gains) {
  for (int64_t i = 0; i < n; ++i) gains[i] = weights[i] / gains[i];
}

}  // namespace

void WriteSampleFactors(Combiner combiner, const Slice& slice,
                        std::span<float> factors) {
  float* const of_slice = factors.data() + slice.samples.first_sample_id;
  for (int64_t r = 0; r < slice.samples.size; ++r) {
    const int64_t begin = slice.FirstId(r);
    const int64_t size = slice.FirstId(r + 1) - begin;
    of_slice[r] =
        slice.weights
            ? WeightDivisor(combiner, slice.weights->subspan(begin, size))
            : UnweightedGain(combiner, size);
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

}  // namespace jte
