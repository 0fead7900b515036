// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte {
namespace {

// Up to here a comparison sort is faster than clearing and adding up
// histograms.
constexpr size_t kMaxComparisonSortSize = 128;

// 2^11 write positions, 8 KiB, share the 32 KiB L1 cache with the data.
constexpr int kMaxDigitBits = 11;
constexpr int kMaxDigits = 3;  // 3 * 11 >= 32
constexpr size_t kMaxBuckets = size_t{1} << kMaxDigitBits;

using Histogram = std::array<uint32_t, kMaxBuckets>;

// The number of digits that costs least: each costs a pass over the elements
// and one over its buckets.
int ChooseNumDigits(size_t num_elements, int num_key_bits) {
  const auto cost = [num_elements, num_key_bits](int num_digits) {
    return num_digits *
           (num_elements + (size_t{1} << CeilDiv(num_key_bits, num_digits)));
  };
  const int min_digits = std::max(1, CeilDiv(num_key_bits, kMaxDigitBits));
  int best = min_digits;
  for (int num_digits = min_digits + 1; num_digits <= kMaxDigits;
       ++num_digits) {
    if (cost(num_digits) < cost(best)) best = num_digits;
  }
  return best;
}

struct Digit {
  int shift;
  uint32_t mask;

  uint32_t operator()(uint64_t element) const {
    return static_cast<uint32_t>(element >> shift) & mask;
  }
};

// One pass for all digits. Neighbours count in different histograms: a
// popular id would otherwise wait for its own last count each time.
template <int kNumDigits>
void CountDigits(std::span<const uint64_t> elements,
                 std::span<const Digit, kMaxDigits> digits,
                 std::span<Histogram, kMaxDigits> even) {
  std::array<Histogram, kNumDigits> odd;
  for (int d = 0; d < kNumDigits; ++d) {
    std::fill_n(even[d].begin(), digits[d].mask + 1, 0);
    std::fill_n(odd[d].begin(), digits[d].mask + 1, 0);
  }
  size_t i = 0;
  for (; i + 1 < elements.size(); i += 2) {
    for (int d = 0; d < kNumDigits; ++d) {
      ++even[d][digits[d](elements[i])];
      ++odd[d][digits[d](elements[i + 1])];
    }
  }
  for (int d = 0; d < kNumDigits; ++d) {
    if (i < elements.size()) ++even[d][digits[d](elements[i])];
    for (uint32_t b = 0; b <= digits[d].mask; ++b) even[d][b] += odd[d][b];
  }
}

// Whether all elements have one value of the digit, so that it orders nothing.
bool IsConstant(const Histogram& counts, Digit digit, uint64_t element,
                size_t num_elements) {
  return counts[digit(element)] == num_elements;
}

void Scatter(std::span<const uint64_t> from, Digit digit, Histogram& counts,
             uint64_t* to) {
  uint32_t position = 0;
  for (uint32_t b = 0; b <= digit.mask; ++b) {
    position += std::exchange(counts[b], position);
  }
  for (const uint64_t element : from) to[counts[digit(element)]++] = element;
}

}  // namespace

std::span<uint64_t> SortElements(std::span<uint64_t> elements,
                                 std::span<uint64_t> buffer, int num_key_bits) {
  if (elements.size() <= kMaxComparisonSortSize) {
    std::ranges::sort(elements);
    return elements;
  }
  const int num_digits = ChooseNumDigits(elements.size(), num_key_bits);
  const int digit_bits = CeilDiv(num_key_bits, num_digits);
  std::array<Digit, kMaxDigits> digits;
  for (int d = 0; d < kMaxDigits; ++d) {
    digits[d] = {.shift = 32 + d * digit_bits,
                 .mask = (uint32_t{1} << digit_bits) - 1};
  }
  std::array<Histogram, kMaxDigits> counts;
  switch (num_digits) {
    case 1:
      CountDigits<1>(elements, digits, counts);
      break;
    case 2:
      CountDigits<2>(elements, digits, counts);
      break;
    default:
      CountDigits<3>(elements, digits, counts);
  }
  for (int d = 0; d < num_digits; ++d) {
    if (IsConstant(counts[d], digits[d], elements[0], elements.size())) {
      continue;
    }
    Scatter(elements, digits[d], counts[d], buffer.data());
    std::swap(elements, buffer);
  }
  return elements;
}

}  // namespace jte
