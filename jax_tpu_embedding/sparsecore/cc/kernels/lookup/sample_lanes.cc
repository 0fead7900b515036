// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte::kernels {
namespace {

constexpr int64_t kLanes = SampleLanes::kLanes;
constexpr uint32_t kNoNumber = SampleLanes::kNoNumber;
// Numbers of ids that are filled up to: those of a block of Transpose.
constexpr int64_t kBlock = 4;
// The network of so many ids or fewer has no loop, and vectors of AVX-512 stay
// in registers: a third of the time.
constexpr int64_t kMaxUnrolled = 32;

// Of some lanes next to each other, as many as a register has.
template <int kWidth>
using Numbers = Vector<uint32_t, kWidth>;
template <int kWidth>
using Gains = Vector<float, kWidth>;

// n rows of kLanes values, at a multiple of a cache line: what is written
// across two lines is read back from the cache only.
template <typename T>
T* TakeRows(ScratchArray<T>& memory, int64_t n) {
  constexpr size_t kLine = 64;
  const size_t bytes = n * kLanes * sizeof(T);
  size_t space = bytes + kLine;
  void* start = memory.Take(space / sizeof(T)).data();
  return static_cast<T*>(std::align(kLine, bytes, start, space));
}

// To a reference: functions that return vectors differ by what the machine has.
template <typename Values, typename T>
[[gnu::always_inline]] inline void Load(const T* from, Values& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <typename Values, typename T>
[[gnu::always_inline]] inline void Store(const Values& from, T* to) {
  std::memcpy(to, &from, sizeof(from));
}

// ---- From samples to lanes, and back.

template <typename Values>
[[gnu::always_inline]] inline void Transpose(Values (&rows)[kBlock]) {
  const auto& [r0, r1, r2, r3] = rows;
  const Values a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Values b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Values c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Values d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Number i of sample k, numbers[begins[k] + i], becomes rows[i * kLanes + k];
// what samples do not have is kNoNumber.
void FillRows(const uint32_t* numbers, const SampleLanes::Begins& begins,
              const std::array<int32_t, kLanes>& all_sizes, int64_t num_rows,
              uint32_t* rows) {
  using Values = Vector<uint32_t, kBlock>;
  using Sizes = Vector<int32_t, kBlock>;
  for (int64_t k = 0; k < kLanes; k += kBlock) {
    Sizes sizes;
    Load(&all_sizes[k], sizes);
    for (int64_t i = 0; i < num_rows; i += kBlock) {
      Values block[kBlock] = {};
#pragma GCC unroll 4
      for (int64_t j = 0; j < kBlock; ++j) {
        if (i < all_sizes[k + j]) {
          Load(numbers + begins[k + j] + i, block[j]);
        }
      }
      Transpose(block);
#pragma GCC unroll 4
      for (int64_t j = 0; j < kBlock; ++j) {
        const Sizes position = Sizes{} + static_cast<int32_t>(i + j);
        const Values number =
            sizes > position ? block[j] : Values{} + kNoNumber;
        Store(number, rows + (i + j) * kLanes + k);
      }
    }
  }
}

// from[i * from_stride + k], for i < num_from and k < num_to, becomes
// to[k * to_stride + i]. Requires: multiples of kBlock.
template <typename T>
void TransposeAll(const T* from, int64_t from_stride, int64_t num_from,
                  int64_t num_to, T* to, int64_t to_stride) {
  for (int64_t i = 0; i < num_from; i += kBlock) {
    for (int64_t k = 0; k < num_to; k += kBlock) {
      Vector<T, kBlock> block[kBlock];
#pragma GCC unroll 4
      for (int64_t j = 0; j < kBlock; ++j) {
        Load(from + (i + j) * from_stride + k, block[j]);
      }
      Transpose(block);
#pragma GCC unroll 4
      for (int64_t j = 0; j < kBlock; ++j) {
        Store(block[j], to + (k + j) * to_stride + i);
      }
    }
  }
}

// ---- The network.

// The lower one of two numbers becomes number `low`, the other one `high`.
struct Comparator {
  uint8_t low;
  uint8_t high;
};

// What makes n numbers, each `sorted` of which are in order, into lists of up
// to `most` that are. Both are powers of two.
constexpr std::vector<Comparator> MergeSorted(int64_t n, int64_t sorted,
                                              int64_t most) {
  std::vector<Comparator> network;
  for (int64_t p = sorted; p < most && p < n; p *= 2) {
    for (int64_t distance = p; distance > 0; distance /= 2) {
      for (int64_t i = distance % p; i + distance < n; ++i) {
        // Within two lists, every other run of `distance` numbers.
        const bool is_low = (i - distance % p) / distance % 2 == 0;
        if (!is_low || i / (2 * p) != (i + distance) / (2 * p)) continue;
        network.push_back({.low = static_cast<uint8_t>(i),
                           .high = static_cast<uint8_t>(i + distance)});
      }
    }
  }
  return network;
}

template <int64_t kSize>
constexpr auto FixedNetwork() {
  constexpr auto kNetwork = [] { return MergeSorted(kSize, 1, kSize * 2); };
  std::array<Comparator, kNetwork().size()> network;
  std::ranges::copy(kNetwork(), network.begin());
  return network;
}
// As many as Batcher's networks have: more would sort as well.
static_assert(FixedNetwork<16>().size() == 63);
static_assert(FixedNetwork<32>().size() == 191);

// What sorts n numbers, of which each `kSorted` are sorted.
template <int64_t kSorted>
const std::vector<Comparator>& MergesOf(int64_t n) {
  // Never destroyed: a thread may look up while the process exits.
  static const auto& networks = *[] {
    auto* const all = new std::vector<std::vector<Comparator>>();
    for (int64_t k = 0; k <= SampleLanes::kMaxIds; ++k) {
      all->push_back(MergeSorted(k, kSorted, SampleLanes::kMaxIds));
    }
    return all;
  }();
  return networks[n];
}

// Calls work<n>(lane) for each n lanes from `lane` on.
[[gnu::always_inline]] inline void ForLanes(const auto& work) {
  WithVectorLanes([&work]<int kWidth>() __attribute__((always_inline)) {
    for (int64_t lane = 0; lane < kLanes; lane += kWidth) {
      work.template operator()<kWidth>(lane);
    }
  });
}

// Of vectors: of loops over lanes GCC 12 makes a branch for each lane.
template <typename Values>
[[gnu::always_inline]] inline void Exchange(Values& low, Values& high) {
  const Values a = low;
  const Values b = high;
  low = a < b ? a : b;
  high = a < b ? b : a;
}

template <int kWidth, int64_t kSize>
[[gnu::always_inline]] inline void SortUnrolled(uint32_t* rows) {
  static constexpr auto kNetwork = FixedNetwork<kSize>();
  Numbers<kWidth> numbers[kSize];
#pragma GCC unroll 32
  for (int64_t i = 0; i < kSize; ++i) Load(rows + i * kLanes, numbers[i]);
  [&numbers]<size_t... kNumber>(
      std::index_sequence<kNumber...>) __attribute__((always_inline)) {
    (Exchange(numbers[kNetwork[kNumber].low], numbers[kNetwork[kNumber].high]),
     ...);
  }(std::make_index_sequence<kNetwork.size()>());
#pragma GCC unroll 32
  for (int64_t i = 0; i < kSize; ++i) Store(numbers[i], rows + i * kLanes);
}

// Of kMaxUnrolled rows at most.
template <int kWidth>
[[gnu::always_inline]] inline void SortBlock(uint32_t* rows, int64_t num_rows) {
  static_assert(kBlock == 4 && kMaxUnrolled == 32);
  switch (num_rows) {
    case 4:
      return SortUnrolled<kWidth, 4>(rows);
    case 8:
      return SortUnrolled<kWidth, 8>(rows);
    case 12:
      return SortUnrolled<kWidth, 12>(rows);
    case 16:
      return SortUnrolled<kWidth, 16>(rows);
    case 20:
      return SortUnrolled<kWidth, 20>(rows);
    case 24:
      return SortUnrolled<kWidth, 24>(rows);
    case 28:
      return SortUnrolled<kWidth, 28>(rows);
    default:
      return SortUnrolled<kWidth, 32>(rows);
  }
}

}  // namespace

// Sorts the numbers of every lane.
void SortRows(uint32_t* all_rows, int64_t num_rows) {
  const auto& merges = MergesOf<kMaxUnrolled>(num_rows);
  ForLanes([&]<int kWidth>(int64_t lane) __attribute__((always_inline)) {
    uint32_t* const rows = all_rows + lane;
    for (int64_t i = 0; i < num_rows; i += kMaxUnrolled) {
      SortBlock<kWidth>(rows + i * kLanes,
                        std::min(kMaxUnrolled, num_rows - i));
    }
    for (const auto [low, high] : merges) {
      Numbers<kWidth> a;
      Numbers<kWidth> b;
      Load(rows + low * kLanes, a);
      Load(rows + high * kLanes, b);
      Exchange(a, b);
      Store(a, rows + low * kLanes);
      Store(b, rows + high * kLanes);
    }
  });
}

// Sorts the numbers of every lane, and what belongs to them by it.
void SortRowsWith(uint32_t* all_rows, uint32_t* all_positions,
                  int64_t num_rows) {
  const auto& merges = MergesOf<1>(num_rows);
  ForLanes([&]<int kWidth>(int64_t lane) __attribute__((always_inline)) {
    using Values = Numbers<kWidth>;
    uint32_t* const rows = all_rows + lane;
    uint32_t* const positions = all_positions + lane;
    for (const auto [low, high] : merges) {
      Values a;
      Values b;
      Values at_a;
      Values at_b;
      Load(rows + low * kLanes, a);
      Load(rows + high * kLanes, b);
      Load(positions + low * kLanes, at_a);
      Load(positions + high * kLanes, at_b);
      // What is no condition of a choice, GCC 12 compares lane by lane.
      const Values yes = Values{} + 1;
      const Values is_before = at_a < at_b ? yes : yes - 1;
      const Values is_low = a < b ? yes : a == b ? is_before : yes - 1;
      Store<Values>(is_low == yes ? a : b, rows + low * kLanes);
      Store<Values>(is_low == yes ? b : a, rows + high * kLanes);
      Store<Values>(is_low == yes ? at_a : at_b, positions + low * kLanes);
      Store<Values>(is_low == yes ? at_b : at_a, positions + high * kLanes);
    }
  });
}

// Puts the position of each number below it.
void AddPositions(int bits, int64_t num_rows, uint32_t* rows) {
  ForLanes([&]<int kWidth>(int64_t lane) __attribute__((always_inline)) {
    for (int64_t i = 0; i < num_rows; ++i) {
      Numbers<kWidth> number;
      Load(rows + i * kLanes + lane, number);
      const Numbers<kWidth> value = number << bits | static_cast<uint32_t>(i);
      Store<Numbers<kWidth>>(number == kNoNumber ? number : value,
                             rows + i * kLanes + lane);
    }
  });
}

// Whether a lane has a number twice, above `bits`.
bool HaveRepeats(const uint32_t* rows, int64_t num_rows, int bits) {
  uint32_t all = kNoNumber;
  ForLanes([&]<int kWidth>(int64_t lane) __attribute__((always_inline)) {
    Numbers<kWidth> found = Numbers<kWidth>{} + kNoNumber;
    for (int64_t i = 1; i < num_rows; ++i) {
      Numbers<kWidth> before;
      Numbers<kWidth> number;
      Load(rows + (i - 1) * kLanes + lane, before);
      Load(rows + i * kLanes + lane, number);
      found = before >> bits == number >> bits ? found & number : found;
    }
    for (int64_t k = 0; k < kWidth; ++k) all &= found[k];
  });
  return all != kNoNumber;
}

// Writes the sum of each number's gain and those of the same number, above
// `bits`, before it. The gain of number i of lane k is gains[i * stride + k].
void SumGains(const uint32_t* rows, int64_t num_rows, int bits,
              const float* gains, int64_t stride, float* sums) {
  ForLanes([&]<int kWidth>(int64_t lane) __attribute__((always_inline)) {
    Numbers<kWidth> before = Numbers<kWidth>{} + kNoNumber;
    Gains<kWidth> sum = {};
    for (int64_t i = 0; i < num_rows; ++i) {
      Numbers<kWidth> number;
      Gains<kWidth> gain;
      Load(rows + i * kLanes + lane, number);
      number >>= bits;
      Load(gains + i * stride + lane, gain);
      sum = number == before ? sum + gain : gain;
      before = number;
      Store(sum, sums + i * kLanes + lane);
    }
  });
}

void SampleLanes::MakeRows(const uint32_t* numbers, const Begins& begins) {
  for (int64_t k = 0; k < kLanes; ++k) {
    sizes_[k] = static_cast<int32_t>(begins[k + 1] - begins[k]);
  }
  num_rows_ = RoundUp<int64_t>(std::ranges::max(sizes_), kBlock);
  lane_size_ = num_rows_ + kBlock;
  rows_ = TakeRows(row_memory_, num_rows_);
  FillRows(numbers, begins, sizes_, num_rows_, rows_);
}

void SampleLanes::MakeLanes() {
  numbers_ = number_memory_.Take(kLanes * lane_size_).data();
  TransposeAll(rows_, kLanes, num_rows_, kLanes, numbers_, lane_size_);
  for (int64_t k = 0; k < kLanes; ++k) {
    numbers_[k * lane_size_ + num_rows_] = kNoNumber;
  }
}

void SampleLanes::SumRepeats(int bits, const float* gains, int64_t stride) {
  float* const sums = TakeRows(sum_memory_, num_rows_);
  SumGains(rows_, num_rows_, bits, gains, stride, sums);
  gains_ = gain_memory_.Take(kLanes * lane_size_).data();
  TransposeAll(sums, kLanes, num_rows_, kLanes, gains_, lane_size_);
}

void SampleLanes::Sort(const uint32_t* numbers, const Begins& begins,
                       const std::array<float, kLanes>& gains) {
  MakeRows(numbers, begins);
  SortRows(rows_, num_rows_);
  MakeLanes();
  same_gains_ = gains;
  gains_ = nullptr;
  has_repeats_ = HaveRepeats(rows_, num_rows_, /*bits=*/0);
  if (has_repeats_) SumRepeats(/*bits=*/0, gains.data(), /*stride=*/0);
}

void SampleLanes::Sort(const uint32_t* all_numbers, const Begins& begins,
                       int number_bits, const float* gains) {
  MakeRows(all_numbers, begins);
  // One more than there are, so that no number and position are kNoNumber.
  int bits = std::bit_width(static_cast<uint64_t>(num_rows_));
  uint32_t* positions = nullptr;
  // Where a number and a position have 32 bits together, they are sorted as
  // one.
  if (number_bits + bits <= 32) {
    AddPositions(bits, num_rows_, rows_);
    SortRows(rows_, num_rows_);
  } else {
    bits = 0;
    positions = TakeRows(position_memory_, num_rows_);
    for (int64_t i = 0; i < num_rows_; ++i) {
      std::fill_n(positions + i * kLanes, kLanes, static_cast<uint32_t>(i));
    }
    SortRowsWith(rows_, positions, num_rows_);
  }
  MakeLanes();
  gains_ = gain_memory_.Take(kLanes * lane_size_).data();
  for (int64_t k = 0; k < kLanes; ++k) {
    uint32_t* const numbers = numbers_ + k * lane_size_;
    float* const sorted = gains_ + k * lane_size_;
    const float* const of_sample = gains + begins[k];
    if (positions == nullptr) {
      const uint32_t mask = (uint32_t{1} << bits) - 1;
      for (int64_t i = 0; i < sizes_[k]; ++i) {
        sorted[i] = of_sample[numbers[i] & mask];
        numbers[i] >>= bits;
      }
    } else {
      for (int64_t i = 0; i < sizes_[k]; ++i) {
        sorted[i] = of_sample[positions[i * kLanes + k]];
      }
    }
  }
  has_repeats_ = HaveRepeats(rows_, num_rows_, bits);
  if (!has_repeats_) return;
  float* const rows = TakeRows(gain_row_memory_, num_rows_);
  TransposeAll(gains_, lane_size_, kLanes, num_rows_, rows, kLanes);
  SumRepeats(bits, rows, kLanes);
}

}  // namespace jte::kernels
