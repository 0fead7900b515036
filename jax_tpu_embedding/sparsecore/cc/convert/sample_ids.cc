// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/sample_ids.h"

#include <algorithm>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte {
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

}  // namespace jte
