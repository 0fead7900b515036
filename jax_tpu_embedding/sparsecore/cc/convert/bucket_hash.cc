// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_hash.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jte {
namespace {

// Four 64-bit words: what the paper calls a vector.
using Words = std::array<uint64_t, 4>;

constexpr Words kKey = {0x4451e30f87db9609, 0xca7358a1fd2737f8,
                        0x4b2c991fcee4fdea, 0x0b2658e18326f6ba};

// Digits of pi, as in the paper.
constexpr Words kInitialMul0 = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0,
                                0x13198a2e03707344, 0x243f6a8885a308d3};
constexpr Words kInitialMul1 = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c,
                                0xbe5466cf34e90c6c, 0x452821e638d01377};

// An input of less than 32 bytes is one packet of zeros but for the input.
constexpr uint32_t kInputBytes = 4;
constexpr int kFinalRounds = 4;

constexpr uint64_t SwapHalves(uint64_t word) { return std::rotl(word, 32); }

constexpr uint64_t RotateHalves(uint64_t word, int bits) {
  const auto low = static_cast<uint32_t>(word);
  const auto high = static_cast<uint32_t>(word >> 32);
  return (uint64_t{std::rotl(high, bits)} << 32) | std::rotl(low, bits);
}

struct State {
  Words v0;
  Words v1;
  Words mul0;
  Words mul1;
};

// The state before the only packet: the key and the input's size are in it.
constexpr State kInitialState = [] {
  State state = {
      .v0 = {}, .v1 = {}, .mul0 = kInitialMul0, .mul1 = kInitialMul1};
  for (int i = 0; i < 4; ++i) {
    state.v0[i] = (kInitialMul0[i] ^ kKey[i]) +
                  (uint64_t{kInputBytes} << 32 | kInputBytes);
    state.v1[i] =
        RotateHalves(kInitialMul1[i] ^ SwapHalves(kKey[i]), kInputBytes);
  }
  return state;
}();

// Zipper merge: which byte of a pair of words each byte of the result is. It
// spreads the middle bytes of products, which depend on most input bits, over
// both words.
constexpr std::array<uint8_t, 16> kZipper = {3,  12, 2,  5,  14, 1, 15, 0,
                                             11, 4,  10, 13, 9,  6, 8,  7};

constexpr uint64_t ByteOf(const Words& words, int i) {
  return (words[i / 8] >> (i % 8 * 8)) & 0xff;
}

constexpr void AddZipped(const Words& from, Words& to) {
  for (int i = 0; i < 4; ++i) {
    const int pair = i / 2 * 16;
    uint64_t zipped = 0;
    for (int byte = 0; byte < 8; ++byte) {
      zipped |= ByteOf(from, pair + kZipper[i % 2 * 8 + byte]) << (byte * 8);
    }
    to[i] += zipped;
  }
}

constexpr uint64_t MultiplyHalves(uint64_t low_of, uint64_t high_of) {
  return (low_of & 0xffffffff) * (high_of >> 32);
}

constexpr void Update(State& s, const Words& packet) {
  for (int i = 0; i < 4; ++i) {
    s.v1[i] += s.mul0[i] + packet[i];
    s.mul0[i] ^= MultiplyHalves(s.v1[i], s.v0[i]);
    s.v0[i] += s.mul1[i];
    s.mul1[i] ^= MultiplyHalves(s.v0[i], s.v1[i]);
  }
  AddZipped(s.v1, s.v0);
  AddZipped(s.v0, s.v1);
}

#if defined(__x86_64__)

// The same for one column, with a vector per register.
struct VectorState {
  __m256i v0;
  __m256i v1;
  __m256i mul0;
  __m256i mul1;
  __m256i packet;  // the next
};

// One column alone would wait for its own multiplications.
constexpr size_t kColumnsInFlight = 4;
using VectorStates = std::array<VectorState, kColumnsInFlight>;

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i Load(
    const Words& words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.data()));
}

[[gnu::target("avx2"), gnu::always_inline]] inline void UpdateAll(
    VectorStates& states, __m256i zipper) {
  for (auto& [v0, v1, mul0, mul1, packet] : states) {
    v1 = _mm256_add_epi64(v1, _mm256_add_epi64(mul0, packet));
    mul0 =
        _mm256_xor_si256(mul0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32)));
    v0 = _mm256_add_epi64(v0, mul1);
    mul1 =
        _mm256_xor_si256(mul1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32)));
    v0 = _mm256_add_epi64(v0, _mm256_shuffle_epi8(v1, zipper));
    v1 = _mm256_add_epi64(v1, _mm256_shuffle_epi8(v0, zipper));
  }
}

[[gnu::target("avx2")]] void FindBucketsInVectors(
    std::span<const uint32_t> columns, std::span<uint8_t> buckets) {
  const __m256i zipper = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(kZipper.data())));
  const __m256i swap_halves_and_pairs =
      _mm256_setr_epi32(5, 4, 7, 6, 1, 0, 3, 2);
  const VectorState initial = {.v0 = Load(kInitialState.v0),
                               .v1 = Load(kInitialState.v1),
                               .mul0 = Load(kInitialState.mul0),
                               .mul1 = Load(kInitialState.mul1),
                               .packet = {}};
  for (size_t first = 0; first < columns.size(); first += kColumnsInFlight) {
    VectorStates states;
    states.fill(initial);
    for (size_t i = 0; i < kColumnsInFlight; ++i) {
      states[i].packet = _mm256_setr_epi64x(columns[first + i], 0, 0, 0);
    }
    UpdateAll(states, zipper);
    for (int round = 0; round < kFinalRounds; ++round) {
      for (VectorState& state : states) {
        state.packet =
            _mm256_permutevar8x32_epi32(state.v0, swap_halves_and_pairs);
      }
      UpdateAll(states, zipper);
    }
    for (size_t i = 0; i < kColumnsInFlight; ++i) {
      const auto& [v0, v1, mul0, mul1, packet] = states[i];
      const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(v0, v1),
                                           _mm256_add_epi64(mul0, mul1));
      buckets[first + i] =
          static_cast<uint32_t>(_mm256_cvtsi256_si32(sum)) % kMaxMinibatches;
    }
  }
}

#endif  // defined(__x86_64__)

}  // namespace

uint64_t HashColumn(uint32_t column) {
  State s = kInitialState;
  Update(s, {column, 0, 0, 0});
  for (int round = 0; round < kFinalRounds; ++round) {
    Update(s, {SwapHalves(s.v0[2]), SwapHalves(s.v0[3]), SwapHalves(s.v0[0]),
               SwapHalves(s.v0[1])});
  }
  return s.v0[0] + s.v1[0] + s.mul0[0] + s.mul1[0];
}

void FindBuckets(std::span<const uint32_t> columns,
                 std::span<uint8_t> buckets) {
  size_t done = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    done = columns.size() / kColumnsInFlight * kColumnsInFlight;
    FindBucketsInVectors(columns.first(done), buckets.first(done));
  }
#endif
  for (; done < columns.size(); ++done) buckets[done] = BucketOf(columns[done]);
}

}  // namespace jte
