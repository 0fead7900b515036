// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The state of the hash of bucket_hash.h, and its constants.
//
// It is four vectors of four 64-bit words. Words meet in pairs only: a round
// mixes words 0 and 1, and words 2 and 3, of all vectors; the packet of the
// next round swaps the pairs.
//
// Source: Alakuijala, Cox and Wassenberg, "Fast keyed hash/pseudo-random
// function using SIMD multiply and permute", arXiv:1612.06257, 2016.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_HIGHWAY_STATE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_HIGHWAY_STATE_H_

#include <array>
#include <bit>
#include <cstdint>

namespace jte::convert {

// What the paper calls a vector.
using HighwayWords = std::array<uint64_t, 4>;

inline constexpr HighwayWords kHighwayKey = {
    0x4451e30f87db9609, 0xca7358a1fd2737f8, 0x4b2c991fcee4fdea,
    0x0b2658e18326f6ba};

// Digits of pi, as in the paper.
inline constexpr HighwayWords kHighwayMul0 = {
    0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344,
    0x243f6a8885a308d3};
inline constexpr HighwayWords kHighwayMul1 = {
    0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c,
    0x452821e638d01377};

// An input of less than 32 bytes is one packet of zeros but for the input.
inline constexpr uint32_t kHighwayInputBytes = 4;
inline constexpr int kHighwayFinalRounds = 4;

// Zipper merge: which byte of a pair of words each byte of the result is. It
// spreads the middle bytes of products, which depend on most input bits, over
// both words.
inline constexpr std::array<uint8_t, 16> kHighwayZipper = {
    3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7};

struct HighwayState {
  HighwayWords v0;
  HighwayWords v1;
  HighwayWords mul0;
  HighwayWords mul1;

  constexpr void Update(const HighwayWords& packet) {
    for (int i = 0; i < 4; ++i) {
      v1[i] += mul0[i] + packet[i];
      mul0[i] ^= MultiplyHalves(v1[i], v0[i]);
      v0[i] += mul1[i];
      mul1[i] ^= MultiplyHalves(v0[i], v1[i]);
    }
    AddZipped(v1, v0);
    AddZipped(v0, v1);
  }

  constexpr void FinalUpdate() {
    Update({std::rotl(v0[2], 32), std::rotl(v0[3], 32), std::rotl(v0[0], 32),
            std::rotl(v0[1], 32)});
  }

 private:
  static constexpr uint64_t MultiplyHalves(uint64_t low_of, uint64_t high_of) {
    return (low_of & 0xffffffff) * (high_of >> 32);
  }

  static constexpr uint64_t ByteOf(const HighwayWords& words, int i) {
    return (words[i / 8] >> (i % 8 * 8)) & 0xff;
  }

  static constexpr void AddZipped(const HighwayWords& from, HighwayWords& to) {
    for (int i = 0; i < 4; ++i) {
      const int pair = i / 2 * 16;
      uint64_t zipped = 0;
      for (int byte = 0; byte < 8; ++byte) {
        zipped |= ByteOf(from, pair + kHighwayZipper[i % 2 * 8 + byte])
                  << (byte * 8);
      }
      to[i] += zipped;
    }
  }
};

// Before the only packet: the key and the input's size are in it.
inline constexpr HighwayState kHighwayStart = [] {
  HighwayState state = {
      .v0 = {}, .v1 = {}, .mul0 = kHighwayMul0, .mul1 = kHighwayMul1};
  constexpr uint64_t kSizes =
      uint64_t{kHighwayInputBytes} << 32 | kHighwayInputBytes;
  for (int i = 0; i < 4; ++i) {
    const uint64_t word = kHighwayMul1[i] ^ std::rotl(kHighwayKey[i], 32);
    const auto low = static_cast<uint32_t>(word);
    const auto high = static_cast<uint32_t>(word >> 32);
    state.v0[i] = (kHighwayMul0[i] ^ kHighwayKey[i]) + kSizes;
    state.v1[i] = uint64_t{std::rotl(high, kHighwayInputBytes)} << 32 |
                  std::rotl(low, kHighwayInputBytes);
  }
  return state;
}();

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_HIGHWAY_STATE_H_
