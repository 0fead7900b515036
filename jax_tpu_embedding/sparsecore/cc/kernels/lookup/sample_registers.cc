// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_registers.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"

namespace jte::kernels {

#ifndef JTE_HAS_AVX512_CODE

bool ShouldSortInRegisters(int, bool, int64_t) { return false; }

WeightedRow* SortInRegisters(const UnsortedSamples&, const WeightedRow*,
                             WeightedRow* out, uint32_t*) {
  return out;
}

#else

namespace {

// Samples of fewer leave most lanes of a register empty.
constexpr int64_t kMinIds = 5;

// Registers of a sample of so many ids; code is compiled for 1, 2, 4, 6 and 8.
int NumRegisters(int64_t num_ids) {
  if (num_ids <= 16) return 1;
  return 2 * static_cast<int>((num_ids + 31) / 32);
}

// Of each lane of so many registers.
constexpr int PositionBits(int num_registers) {
  return std::bit_width(static_cast<unsigned>(16 * num_registers - 1));
}

}  // namespace

bool ShouldSortInRegisters(int number_bits, bool has_gains, int64_t most_ids) {
  const int position_bits =
      has_gains ? PositionBits(NumRegisters(most_ids)) : 0;
  return kMinIds <= most_ids && most_ids <= kMaxIdsInRegisters &&
         (!has_gains || number_bits + position_bits < 32) &&
         __builtin_cpu_supports("avx512vl");
}

// From here on, and nothing that other files share. GCC 12 warns about its own
// header.
#pragma GCC target("avx512f,avx512vl,popcnt")
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace {

constexpr int kLanes = 16;  // of a register
using Numbers = Vector<uint32_t, kLanes>;
using Gains = Vector<float, kLanes>;

// ---- A bitonic sorting network (Batcher, "Sorting networks and their
// applications", 1968): stages, in each of which every number is compared with
// one other.
//
// The numbers of two registers are arranged anew for each stage, so that those
// to compare have the same lane, the one that shall be lower in the first
// register. That takes half of the minima and maxima of comparing a register
// with itself.

template <int kWidth>
struct Pair {
  Vector<uint32_t, kWidth> first;
  Vector<uint32_t, kWidth> second;
};
using Block = Pair<kLanes>;
constexpr int kBlockSize = 2 * kLanes;

// Which of 2 * kWidth numbers have lane i of the first and the second register.
template <int kWidth>
struct Places {
  int first[kWidth];
  int second[kWidth];
};

// Before a stage that compares number i with number i ^ mask.
template <int kWidth>
constexpr Places<kWidth> PlacesFor(int mask) {
  const auto high = static_cast<int>(std::bit_floor(unsigned(mask)));
  Places<kWidth> places;
  int lane = 0;
  for (int i = 0; i < 2 * kWidth; ++i) {
    if ((i & high) != 0) continue;
    places.first[lane] = i;
    places.second[lane] = i ^ mask;
    ++lane;
  }
  return places;
}

// Which of the lanes of two registers, counted through, are where next.
template <int kWidth>
constexpr Places<kWidth> LanesFor(const Places<kWidth>& places,
                                  const Places<kWidth>& next) {
  int lane_of[2 * kWidth];
  for (int i = 0; i < kWidth; ++i) {
    lane_of[places.first[i]] = i;
    lane_of[places.second[i]] = kWidth + i;
  }
  Places<kWidth> lanes;
  for (int i = 0; i < kWidth; ++i) {
    lanes.first[i] = lane_of[next.first[i]];
    lanes.second[i] = lane_of[next.second[i]];
  }
  return lanes;
}

template <typename Values>
[[gnu::always_inline]] inline void Exchange(Values& low, Values& high) {
  const Values a = low;
  const Values b = high;
  low = a < b ? a : b;
  high = a < b ? b : a;
}

// The mask for which two registers have their numbers in order.
template <int kWidth>
constexpr int kInOrder = kWidth;

// The stages of these masks; the last one only says how the numbers are left.
// For several pairs of registers in turns, since each stage waits for the
// one before.
template <int kSize, int kMask, int kNextMask, int... kMasks, int kWidth>
[[gnu::always_inline]] inline void Stages(Pair<kWidth>* pairs) {
  static constexpr Places<kWidth> kLanesFor =
      LanesFor(PlacesFor<kWidth>(kMask), PlacesFor<kWidth>(kNextMask));
  const auto stage =
      [pairs]<size_t... kLane>(std::index_sequence<kLane...>)
          __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int i = 0; i < kSize; ++i) {
              auto [a, b] = pairs[i];
              Exchange(a, b);
              pairs[i] = {
                  __builtin_shufflevector(a, b, kLanesFor.first[kLane]...),
                  __builtin_shufflevector(a, b, kLanesFor.second[kLane]...)};
            }
          };
  stage(std::make_index_sequence<kWidth>());
  if constexpr (sizeof...(kMasks) > 0) {
    Stages<kSize, kNextMask, kMasks...>(pairs);
  }
}

[[gnu::always_inline]] inline void ExchangeBlocks(Block& low, Block& high) {
  Exchange(low.first, high.first);
  Exchange(low.second, high.second);
}

[[gnu::always_inline]] inline Numbers Reversed(Numbers numbers) {
  return __builtin_shufflevector(numbers, numbers, 15, 14, 13, 12, 11, 10, 9, 8,
                                 7, 6, 5, 4, 3, 2, 1, 0);
}

// Of lists of `kSize` blocks, which are sorted, makes lists of twice as many.
template <int kBlocks, int kSize>
[[gnu::always_inline]] inline void MergeBlocks(Block* blocks) {
#pragma GCC unroll 4
  for (int i = 0; i < kBlocks; ++i) {
    const int j = i ^ (2 * kSize - 1);
    if (i > j || j >= kBlocks) continue;
    // Numbers of the second list stay in the wrong order; the stages that
    // follow sort them, whichever way they are.
    blocks[j] = {Reversed(blocks[j].second), Reversed(blocks[j].first)};
    ExchangeBlocks(blocks[i], blocks[j]);
  }
  if constexpr (kSize == 2) {
    ExchangeBlocks(blocks[0], blocks[1]);
    if constexpr (kBlocks == 4) ExchangeBlocks(blocks[2], blocks[3]);
  }
  Stages<kBlocks, 16, 8, 4, 2, 1, kInOrder<kLanes> >(blocks);
}

// Sorts the numbers of each of several samples.
template <int kSamples>
[[gnu::always_inline]] inline void Sort(Numbers (&samples)[kSamples][1]) {
  constexpr int kHalf = kLanes / 2;
  Pair<kHalf> pairs[kSamples];
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    const Numbers all = samples[s][0];
    pairs[s] = {
        __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7),
        __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15)};
  }
  Stages<kSamples, 1, 3, 1, 7, 2, 1, 15, 4, 2, 1, kInOrder<kHalf> >(pairs);
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    samples[s][0] =
        __builtin_shufflevector(pairs[s].first, pairs[s].second, 0, 1, 2, 3, 4,
                                5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
}

template <int kSamples, int kRegisters>
[[gnu::always_inline]] inline void Sort(
    Numbers (&samples)[kSamples][kRegisters]) {
  constexpr int kBlocks = kRegisters / 2;
  Block blocks[kSamples * kBlocks];
#pragma GCC unroll 4
  for (int i = 0; i < kSamples * kBlocks; ++i) {
    const Numbers* const numbers = samples[i / kBlocks] + i % kBlocks * 2;
    blocks[i] = {numbers[0], numbers[1]};
  }
  Stages<kSamples * kBlocks, 1, 3, 1, 7, 2, 1, 15, 4, 2, 1, 31, 8, 4, 2, 1,
         kInOrder<kLanes> >(blocks);
#pragma GCC unroll 2
  for (int s = 0; s < kSamples; ++s) {
    if constexpr (kBlocks > 1) MergeBlocks<kBlocks, 1>(blocks + s * kBlocks);
    if constexpr (kBlocks > 2) MergeBlocks<kBlocks, 2>(blocks + s * kBlocks);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kSamples * kBlocks; ++i) {
    Numbers* const numbers = samples[i / kBlocks] + i % kBlocks * 2;
    numbers[0] = blocks[i].first;
    numbers[1] = blocks[i].second;
  }
}

// ---- Gains and repeats of a sample.

// gains[p] for each position p, the lowest bits of which count.
template <int kRegisters>
[[gnu::always_inline]] inline Gains Pick(const Gains (&gains)[kRegisters],
                                         Numbers positions) {
  const auto index = __m512i(positions);
  if constexpr (kRegisters == 1) {
    return Gains(_mm512_permutexvar_ps(index, __m512(gains[0])));
  } else {
    const Numbers block =
        positions / kBlockSize % std::bit_ceil(unsigned(kRegisters / 2));
    Gains picked = {};
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters / 2; ++i) {
      const auto here = Gains(_mm512_permutex2var_ps(
          __m512(gains[2 * i]), index, __m512(gains[2 * i + 1])));
      picked = block == unsigned(i) ? here : picked;
    }
    return picked;
  }
}

// The values that are kDistance lanes before those of registers[r].
template <int kDistance, typename Values>
[[gnu::always_inline]] inline Values Before(const Values* registers, int r) {
  static_assert(sizeof(Values) == sizeof(__m512i));
  const __m512i none = _mm512_set1_epi32(-1);
  const __m512i before = r == 0 ? none : __m512i(registers[r - 1]);
  return Values(
      _mm512_alignr_epi32(__m512i(registers[r]), before, kLanes - kDistance));
}

// Some lanes of each register.
template <int kRegisters>
struct Mask {
  __mmask16 lanes[kRegisters];

  __mmask16& operator[](int r) { return lanes[r]; }
  __mmask16 operator[](int r) const { return lanes[r]; }

  bool any() const {
    unsigned all = 0;
    for (const __mmask16 some : lanes) all |= some;
    return all != 0;
  }
};

// The lanes, among these, whose number is that of kDistance lanes before.
template <int kDistance, int kRegisters>
[[gnu::always_inline]] inline Mask<kRegisters> Repeats(
    const Mask<kRegisters>& among, const Numbers (&numbers)[kRegisters]) {
  Mask<kRegisters> mask;
#pragma GCC unroll 8
  for (int r = 0; r < kRegisters; ++r) {
    mask[r] = _mm512_mask_cmpeq_epi32_mask(
        among[r], __m512i(numbers[r]), __m512i(Before<kDistance>(numbers, r)));
  }
  return mask;
}

// sums[i] = sums[i - 1] + gains[i] for each lane i of these, all at a time.
template <int kRegisters>
[[gnu::always_inline]] inline void AddBefore(const Mask<kRegisters>& mask,
                                             const Gains (&gains)[kRegisters],
                                             Gains (&sums)[kRegisters]) {
#pragma GCC unroll 8
  for (int r = kRegisters - 1; r >= 0; --r) {
    sums[r] =
        Gains(_mm512_mask_add_ps(__m512(sums[r]), mask[r],
                                 __m512(Before<1>(sums, r)), __m512(gains[r])));
  }
}

// Each gain of a number that is the same as those before it becomes the sum of
// theirs and its own, from left to right.
template <int kRegisters>
[[gnu::always_inline]] inline void SumRepeats(
    const Mask<kRegisters>& repeats, const Numbers (&numbers)[kRegisters],
    Gains (&gains)[kRegisters]) {
  Gains sums[kRegisters];
  std::copy_n(gains, kRegisters, sums);
  AddBefore(repeats, gains, sums);
  // The third ones and so on, in each turn one place less. Of Zipf ids, whether
  // there is a third one is no better guessed than computed.
  Mask<kRegisters> mask = Repeats<2>(repeats, numbers);
  AddBefore(mask, gains, sums);
  mask = Repeats<3>(mask, numbers);
  while (mask.any()) {
    AddBefore(mask, gains, sums);
    const Mask<kRegisters> before = mask;
    for (int r = 0; r < kRegisters; ++r) {
      const int carry = r == 0 ? 0 : before[r - 1] >> (kLanes - 1);
      mask[r] &= static_cast<__mmask16>(before[r] << 1 | carry);
    }
  }
  std::copy_n(sums, kRegisters, gains);
}

// Writes kLanes entries.
[[gnu::always_inline]] inline void WriteEntries(Numbers numbers, Gains gains,
                                                WeightedRow* out) {
  const auto bits = Numbers(gains);
  const Numbers entries[] = {
      __builtin_shufflevector(numbers, bits, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                              5, 21, 6, 22, 7, 23),
      __builtin_shufflevector(numbers, bits, 8, 24, 9, 25, 10, 26, 11, 27, 12,
                              28, 13, 29, 14, 30, 15, 31)};
  static_assert(sizeof(entries) == kLanes * sizeof(WeightedRow));
  std::memcpy(out, entries, sizeof(entries));
}

template <int kRegisters>
[[gnu::always_inline]] inline WeightedRow* WriteAll(
    const Numbers (&numbers)[kRegisters], const Gains (&gains)[kRegisters],
    int64_t size, WeightedRow* out) {
#pragma GCC unroll 8
  for (int r = 0; r < kRegisters; ++r) {
    WriteEntries(numbers[r], gains[r], out + r * kLanes);
  }
  return out + size;
}

// Writes the last of those that are the same.
template <int kRegisters>
[[gnu::always_inline]] inline WeightedRow* WriteLast(
    const Mask<kRegisters>& there, const Numbers (&numbers)[kRegisters],
    const Gains (&gains)[kRegisters], WeightedRow* out) {
#pragma GCC unroll 8
  for (int r = 0; r < kRegisters; ++r) {
    const __m512i none = _mm512_set1_epi32(-1);
    const __m512i after = r + 1 == kRegisters ? none : __m512i(numbers[r + 1]);
    const auto here = __m512i(numbers[r]);
    const __mmask16 last = _mm512_mask_cmpneq_epi32_mask(
        there[r], here, _mm512_alignr_epi32(after, here, 1));
    WriteEntries(Numbers(_mm512_maskz_compress_epi32(last, here)),
                 Gains(_mm512_maskz_compress_ps(last, __m512(gains[r]))), out);
    out += std::popcount(static_cast<unsigned>(last));
  }
  return out;
}

[[gnu::always_inline]] inline __mmask16 FirstLanes(int64_t size) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(size, 0, kLanes)) -
                                1);
}

// Samples [k, k + kSamples), which have kRegisters * kLanes ids at most.
template <int kRegisters, int kSamples, bool kHasGains>
[[gnu::always_inline]] inline WeightedRow* SortSamples(
    const UnsortedSamples& samples, int64_t k, const WeightedRow* first,
    WeightedRow* out, uint32_t* ends) {
  constexpr int kBits = kHasGains ? PositionBits(kRegisters) : 0;
  constexpr Numbers kIota = {0, 1, 2,  3,  4,  5,  6,  7,
                             8, 9, 10, 11, 12, 13, 14, 15};
  Mask<kRegisters> there[kSamples];
  Numbers numbers[kSamples][kRegisters];
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    const int64_t begin = samples.begins[k + s];
    const int64_t size = samples.begins[k + s + 1] - begin;
#pragma GCC unroll 8
    for (int r = 0; r < kRegisters; ++r) {
      const int before = r * kLanes;
      there[s][r] = FirstLanes(size - before);
      const auto number = Numbers(_mm512_maskz_loadu_epi32(
          there[s][r], samples.numbers + begin + before));
      // What is not there is larger than all that is.
      const __m512i none = _mm512_set1_epi32(-1);
      if constexpr (kHasGains) {
        const Numbers positions = kIota + static_cast<unsigned>(before);
        numbers[s][r] = Numbers(_mm512_mask_or_epi32(
            none, there[s][r], __m512i(number << kBits), __m512i(positions)));
      } else {
        numbers[s][r] =
            Numbers(_mm512_mask_mov_epi32(none, there[s][r], __m512i(number)));
      }
    }
  }
  Sort(numbers);

  Gains gains[kSamples][kRegisters];
  Mask<kRegisters> repeats[kSamples];
  bool any_repeats = false;
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    if constexpr (kHasGains) {
      const float* const gain = samples.gains + samples.begins[k + s];
      Gains unsorted[kRegisters];
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) {
        unsorted[r] =
            Gains(_mm512_maskz_loadu_ps(there[s][r], gain + r * kLanes));
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) {
        gains[s][r] = Pick(unsorted, numbers[s][r]);
        numbers[s][r] >>= kBits;
      }
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) {
        gains[s][r] = Gains(_mm512_set1_ps(samples.same_gains[k + s]));
      }
    }
    repeats[s] = Repeats<1>(there[s], numbers[s]);
    any_repeats |= repeats[s].any();
  }

  if (!any_repeats) {
#pragma GCC unroll 4
    for (int s = 0; s < kSamples; ++s) {
      out = WriteAll(numbers[s], gains[s],
                     samples.begins[k + s + 1] - samples.begins[k + s], out);
      ends[k + s] = static_cast<uint32_t>(out - first);
    }
    return out;
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSamples; ++s) {
    SumRepeats(repeats[s], numbers[s], gains[s]);
    out = WriteLast(there[s], numbers[s], gains[s], out);
    ends[k + s] = static_cast<uint32_t>(out - first);
  }
  return out;
}

template <int kRegisters, int kSamples, bool kHasGains>
[[gnu::always_inline]] inline WeightedRow* SortAll(
    const UnsortedSamples& samples, const WeightedRow* first, WeightedRow* out,
    uint32_t* ends) {
  static_assert(kSamplesInRegisters % kSamples == 0);
  const int64_t num_samples = std::ssize(samples.begins) - 1;
  for (int64_t k = 0; k < num_samples; k += kSamples) {
    out = SortSamples<kRegisters, kSamples, kHasGains>(samples, k, first, out,
                                                       ends);
  }
  return out;
}

template <int kRegisters, int kSamples>
[[gnu::always_inline]] inline WeightedRow* SortAll(
    const UnsortedSamples& samples, const WeightedRow* first, WeightedRow* out,
    uint32_t* ends) {
  return samples.gains == nullptr
             ? SortAll<kRegisters, kSamples, false>(samples, first, out, ends)
             : SortAll<kRegisters, kSamples, true>(samples, first, out, ends);
}

}  // namespace

WeightedRow* SortInRegisters(const UnsortedSamples& samples,
                             const WeightedRow* first, WeightedRow* out,
                             uint32_t* ends) {
  switch (NumRegisters(samples.most_ids)) {
    case 1:
      return SortAll<1, kSamplesInRegisters>(samples, first, out, ends);
    case 2:
      return SortAll<2, kSamplesInRegisters>(samples, first, out, ends);
    case 4:
      return SortAll<4, 2>(samples, first, out, ends);
    case 6:
      return SortAll<6, 1>(samples, first, out, ends);
    default:
      return SortAll<8, 1>(samples, first, out, ends);
  }
}

#endif

}  // namespace jte::kernels
