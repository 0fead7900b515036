// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte::convert {
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
  // In some 1.3 ns: a pass reads, counts and writes every element, and clears
  // and adds up its counters; a repair compares every element.
  constexpr double kCounterCost = 0.5;
  constexpr double kRepairCost = 0.2;
  const auto n = static_cast<double>(num_elements);
  // With 20 times as many values as elements, the bits below order hardly any
  // two elements, unless these have many times the same leading bits.
  const int leading_bits = std::bit_width(20 * num_elements);
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

// The buckets of a digit, by what is taken from the front of the elements and
// what is taken from their back. Two counters for each, because an element that
// follows one of its own bucket would wait for that to have counted.
struct Buckets {
  Counters begins;  // counts, and from AddUp on where the next element goes
  Counters ends;    // counts, then the end of where the next element goes

  void Clear(size_t size) {
    std::fill_n(begins.begin(), size, 0);
    std::fill_n(ends.begin(), size, 0);
  }

  void AddUp(size_t size) {
    uint32_t position = 0;
    for (size_t b = 0; b < size; ++b) {
      position += std::exchange(begins[b], position) + ends[b];
    }
    std::copy_n(begins.begin() + 1, size - 1, ends.begin());
    ends[size - 1] = position;
  }
};

// Calls front with the elements from the first on, and back with those from the
// last on, in turns, until they meet.
void ForEachFromBothEnds(std::span<const uint64_t> elements, auto front,
                         auto back) {
  size_t begin = 0;
  size_t end = elements.size();
  for (; begin + 1 < end; ++begin) {
    front(elements[begin]);
    back(elements[--end]);
  }
  if (begin < end) front(elements[begin]);
}

void Count(std::span<const uint64_t> elements, Digit digit, Buckets& buckets) {
  ForEachFromBothEnds(
      elements, [digit, &buckets](uint64_t e) { ++buckets.begins[digit(e)]; },
      [digit, &buckets](uint64_t e) { ++buckets.ends[digit(e)]; });
}

// Moves the elements to their buckets, and calls `also` with each.
void Move(std::span<const uint64_t> elements, Digit digit, Buckets& buckets,
          uint64_t* to, auto also) {
  for (const uint64_t element : elements) {
    to[buckets.begins[digit(element)]++] = element;
    also(element);
  }
}

// The same for elements that are sorted by another digit. Those of a hot
// row are neighbours then, each of which waits for the one before; from both
// ends, two at a time do: 1.3 -> 1.0 ns per element for Zipf 1.05.
void MoveSorted(std::span<const uint64_t> elements, Digit digit,
                Buckets& buckets, uint64_t* to, auto also) {
  ForEachFromBothEnds(
      elements,
      [digit, &buckets, to, also](uint64_t element) {
        to[buckets.begins[digit(element)]++] = element;
        also(element);
      },
      [digit, &buckets, to, also](uint64_t element) {
        to[--buckets.ends[digit(element)]] = element;
        also(element);
      });
}

// Least significant digit first. Returns the span that holds the result.
//
// All but the first digit are counted while elements move by the one before,
// which takes 0.25 ns per element, and 0.45 in a loop of its own.
std::span<uint64_t> SortByDigits(std::span<uint64_t> elements,
                                 std::span<uint64_t> buffer,
                                 const Passes& passes) {
  const size_t num_buckets = size_t{1} << passes.digit_bits;
  const auto digit = [&passes, num_buckets](int d) {
    return Digit{.shift = passes.shift + d * passes.digit_bits,
                 .mask = static_cast<uint32_t>(num_buckets - 1)};
  };
  std::array<Buckets, 2> buckets;  // of this digit, and of the next
  buckets[0].Clear(num_buckets);
  Count(elements, digit(0), buckets[0]);
  for (int d = 0; d < passes.num_digits; ++d) {
    Buckets& to = buckets[d % 2];
    Buckets& next = buckets[(d + 1) % 2];
    to.AddUp(num_buckets);
    const auto move = [elements, buffer, d, &digit, &to](auto also) {
      if (d == 0) {
        Move(elements, digit(d), to, buffer.data(), also);
      } else {
        MoveSorted(elements, digit(d), to, buffer.data(), also);
      }
    };
    if (d + 1 == passes.num_digits) {
      move([](uint64_t) {});
    } else {
      next.Clear(num_buckets);
      move([next_digit = digit(d + 1), &next](uint64_t element) {
        ++next.begins[next_digit(element)];
      });
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

constexpr size_t kBlock = 16;

// Returns the first i of begin, begin + kBlock, ... such that the kBlock
// elements from i on are not all in order behind the ones before them, or are
// not there.
JTE_VECTOR_CLONES
size_t SkipOrderedBlocks(std::span<const uint64_t> elements, size_t begin) {
  size_t i = begin;
  for (; i + kBlock <= elements.size(); i += kBlock) {
    const uint64_t* const block = elements.data() + i;
    uint64_t descents = 0;
    // Not unrolled, or GCC 12 does not vectorize it.
#pragma GCC unroll 1
    for (size_t j = 0; j < kBlock; ++j) {
      descents |= (block - 1)[j] > block[j];
    }
    if (descents != 0) break;
  }
  return i;
}

// Sorts what is sorted by the bits from `shift` on. Few elements are out of
// place, by little; where they are not, a run of equal bits is sorted by the
// rest of its keys.
void RepairOrder(std::span<uint64_t> elements, std::span<uint64_t> buffer,
                 int shift) {
  for (size_t i = 1; i < elements.size();) {
    i = SkipOrderedBlocks(elements, i);
    const size_t block_end = std::min(elements.size(), i + kBlock);
    for (; i < block_end; ++i) {
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
      const auto sorted =
          SortElements(run, buffer.first(run.size()), shift - 32);
      if (sorted.data() != run.data()) std::ranges::copy(sorted, run.begin());
      i = end - 1;
    }
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

}  // namespace jte::convert
