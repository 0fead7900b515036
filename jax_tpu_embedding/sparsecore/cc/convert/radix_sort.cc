// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"

namespace jte {
namespace {

// Up to here clearing and adding up histograms costs more than sorting.
constexpr size_t kMaxInsertionSortSize = 32;

// How far MoveBack looks for the place of an element before it gives up.
constexpr size_t kMaxDistance = 16;

// 2^11 counters, 8 KiB, share the L1 cache with the data.
constexpr int kMaxDigitBits = 11;
constexpr int kMaxDigits = 3;  // 3 * 11 >= 32
constexpr size_t kMaxBuckets = size_t{1} << kMaxDigitBits;

using Counters = std::array<uint32_t, kMaxBuckets>;

// Which bits the passes sort by: num_digits digits of digit_bits, from bit
// `shift` of the element up to its highest. Lower bits of the key are left to
// RepairOrder.
struct Passes {
  int num_digits;
  int digit_bits;
  int shift;
};

Passes ChoosePasses(size_t num_elements, int num_key_bits) {
  // In some 1.5 ns: a pass reads, counts and writes every element, and clears
  // and adds up its counters; a repair compares every element.
  constexpr double kCounterCost = 0.5;
  constexpr double kRepairCost = 0.3;
  const auto n = static_cast<double>(num_elements);
  // With 16 times as many values as elements, the bits below order hardly any
  // two elements, unless these have many times the same leading bits.
  const int leading_bits = std::bit_width(num_elements) + 4;
  Passes best;
  double best_cost = -1;
  for (int num_digits = 1; num_digits <= kMaxDigits; ++num_digits) {
    for (const int bits : {num_key_bits, leading_bits}) {
      const int digit_bits = std::max(1, CeilDiv(bits, num_digits));
      if (digit_bits > kMaxDigitBits) continue;
      const int shift = std::max(0, num_key_bits - num_digits * digit_bits);
      const double cost =
          num_digits * (n + kCounterCost * (uint32_t{1} << digit_bits)) +
          (shift > 0 ? kRepairCost * n : 0);
      if (best_cost >= 0 && cost >= best_cost) continue;
      best_cost = cost;
      best = {num_digits, digit_bits, 32 + shift};
    }
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

// Where the elements of each bucket begin, for all digits in one pass.
// Neighbours count in different counters: a popular id would otherwise wait for
// its own last count each time.
template <int kNumDigits>
void FindBuckets(std::span<const uint64_t> elements,
                 const std::array<Digit, kMaxDigits>& digits,
                 std::array<Counters, kMaxDigits>& begins) {
  std::array<Counters, kNumDigits> odd;
  for (int d = 0; d < kNumDigits; ++d) {
    std::fill_n(begins[d].begin(), digits[d].mask + 1, 0);
    std::fill_n(odd[d].begin(), digits[d].mask + 1, 0);
  }
  size_t i = 0;
  for (; i + 1 < elements.size(); i += 2) {
    for (int d = 0; d < kNumDigits; ++d) {
      ++begins[d][digits[d](elements[i])];
      ++odd[d][digits[d](elements[i + 1])];
    }
  }
  for (int d = 0; d < kNumDigits; ++d) {
    if (i < elements.size()) ++begins[d][digits[d](elements[i])];
    uint32_t position = 0;
    for (uint32_t b = 0; b <= digits[d].mask; ++b) {
      position += std::exchange(begins[d][b], position) + odd[d][b];
    }
  }
}

// Least significant digit first. Returns the span that holds the result.
std::span<uint64_t> SortByDigits(std::span<uint64_t> elements,
                                 std::span<uint64_t> buffer,
                                 const Passes& passes) {
  std::array<Digit, kMaxDigits> digits;
  for (int d = 0; d < kMaxDigits; ++d) {
    digits[d] = {.shift = passes.shift + d * passes.digit_bits,
                 .mask = (uint32_t{1} << passes.digit_bits) - 1};
  }
  std::array<Counters, kMaxDigits> begins;
  switch (passes.num_digits) {
    case 1:
      FindBuckets<1>(elements, digits, begins);
      break;
    case 2:
      FindBuckets<2>(elements, digits, begins);
      break;
    default:
      FindBuckets<3>(elements, digits, begins);
  }
  for (int d = 0; d < passes.num_digits; ++d) {
    const Digit digit = digits[d];
    Counters& positions = begins[d];
    uint64_t* const to = buffer.data();
    for (const uint64_t element : elements) {
      to[positions[digit(element)]++] = element;
    }
    std::swap(elements, buffer);
  }
  return elements;
}

// Moves elements[i] to its place among the sorted elements before it. Returns
// false, and does nothing, if that is more than max_distance away.
bool MoveBack(std::span<uint64_t> elements, size_t i, size_t max_distance) {
  const uint64_t element = elements[i];
  const size_t first = i - std::min(i, max_distance);
  size_t place = i;
  while (place > first && elements[place - 1] > element) --place;
  if (place > 0 && elements[place - 1] > element) return false;
  for (size_t j = i; j > place; --j) elements[j] = elements[j - 1];
  elements[place] = element;
  return true;
}

void InsertionSort(std::span<uint64_t> elements) {
  for (size_t i = 1; i < elements.size(); ++i) {
    MoveBack(elements, i, elements.size());
  }
}

// Sorts what is sorted by the bits from `shift` on. Few elements are out of
// place, by little; where they are not, a run of equal bits is sorted by the
// rest of its keys.
void RepairOrder(std::span<uint64_t> elements, std::span<uint64_t> buffer,
                 int shift) {
  for (size_t i = 1; i < elements.size(); ++i) {
    if (elements[i - 1] <= elements[i]) [[likely]] {
      continue;
    }
    if (MoveBack(elements, i, kMaxDistance)) continue;
    const uint64_t bits = elements[i] >> shift;
    size_t begin = i;
    size_t end = i;
    while (begin > 0 && elements[begin - 1] >> shift == bits) --begin;
    while (end < elements.size() && elements[end] >> shift == bits) ++end;
    const auto run = elements.subspan(begin, end - begin);
    // The digits below order it; nothing that was moved had an equal key.
    const auto sorted = SortElements(run, buffer.first(run.size()), shift - 32);
    if (sorted.data() != run.data()) std::ranges::copy(sorted, run.begin());
    i = end - 1;
  }
}

}  // namespace

std::span<uint64_t> SortElements(std::span<uint64_t> elements,
                                 std::span<uint64_t> buffer, int num_key_bits) {
  if (elements.size() <= kMaxInsertionSortSize) {
    InsertionSort(elements);
    return elements;
  }
  const Passes passes = ChoosePasses(elements.size(), num_key_bits);
  const auto sorted = SortByDigits(elements, buffer, passes);
  if (passes.shift > 32) {
    const auto unused = sorted.data() == elements.data() ? buffer : elements;
    RepairOrder(sorted, unused, passes.shift);
  }
  return sorted;
}

}  // namespace jte
