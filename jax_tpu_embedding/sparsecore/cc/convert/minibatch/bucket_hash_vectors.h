// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The buckets of bucket_hash.h, of several stack rows at a time.
//
// A register holds a pair of words of one vector of the state, for some of the
// stack rows; highway_state.h says why pairs. So the packet of a final round is
// the other pair's register as it is. Rounds that are the same for all are
// constants, and products that nothing needs are not computed. With a register
// for all four words of a stack row, packets are permutations instead, nothing
// can be left out, and a stack row takes 5.4 ns with AVX-512 and 7.3 with AVX2
// instead of 3.6 and 5.4.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_BUCKET_HASH_VECTORS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_BUCKET_HASH_VECTORS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/highway_state.h"

namespace jte::convert {

// How many stack rows the functions below take at a time.
inline constexpr size_t kStackRowsWithAvx2 = 4;
inline constexpr size_t kStackRowsWithAvx512 = 8;

// The same as FindBuckets, for whole multiples of that many stack rows, on
// machines that have AVX2, or AVX-512 F and BW. For x86-64 only.
void FindBucketsWithAvx2(std::span<const uint32_t> stack_rows,
                         std::span<uint8_t> buckets);
void FindBucketsWithAvx512(std::span<const uint32_t> stack_rows,
                           std::span<uint8_t> buckets);

// The two differ in what `Vectors` is: a register of `Words`, and operations
// on it. A file that instantiates this is compiled for their instructions.
template <typename Vectors>
class PairHash {
 public:
  using Words = typename Vectors::Words;

  // The hash, in the first word of each pair; the second is of no use.
  // `stack_rows`: pairs of a stack row and 0.
  [[gnu::always_inline]] static Words Of(Words stack_rows) {
    Pair low = Broadcast(kHighwayStart, 0);
    Update(low, stack_rows);
    // The other pair of the first packet is 0.
    constexpr HighwayState kNext = [] {
      HighwayState state = kHighwayStart;
      state.Update({});
      return state;
    }();
    Pair high = Broadcast(kNext, 2);
#pragma GCC unroll 8
    for (int round = 0; round < kHighwayFinalRounds; ++round) {
      const Words low_packet = Vectors::SwapHalves(high.v0);
      const Words high_packet = Vectors::SwapHalves(low.v0);
      Update(low, low_packet);
      Update(high, high_packet);
    }
    return low.v0 + low.v1 + low.mul0 + low.mul1;
  }

 private:
  // Words 0 and 1, or 2 and 3, of the state.
  struct Pair {
    Words v0;
    Words v1;
    Words mul0;
    Words mul1;
  };

  static Pair Broadcast(const HighwayState& state, int first) {
    const auto pair = [first](const HighwayWords& words) {
      return Vectors::Repeat(words[first], words[first + 1]);
    };
    return {.v0 = pair(state.v0),
            .v1 = pair(state.v1),
            .mul0 = pair(state.mul0),
            .mul1 = pair(state.mul1)};
  }

  // The same as HighwayState::Update.
  static void Update(Pair& s, Words packet) {
    s.v1 = s.v1 + s.mul0 + packet;
    s.mul0 ^= Vectors::MultiplyLowHalves(s.v1, s.v0 >> 32);
    s.v0 += s.mul1;
    s.mul1 ^= Vectors::MultiplyLowHalves(s.v0, s.v1 >> 32);
    s.v0 += Vectors::Zip(s.v1);
    s.v1 += Vectors::Zip(s.v0);
  }
};

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_MINIBATCH_BUCKET_HASH_VECTORS_H_
