// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A keyed hash: who does not know the key cannot find a message's.
//
//   static const SipKey kKey = RandomSipKey();
//   const uint64_t seal = SipHash(kKey, std::as_bytes(std::span(words)));
//
// Source: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF",
// 2012; SipHash-2-4. Complexity: about 1 ns per 8 bytes.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SIP_HASH_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SIP_HASH_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace jte {

using SipKey = std::array<uint64_t, 2>;

// From the system's source of random numbers.
inline SipKey RandomSipKey() {
  std::random_device random;
  const auto word = [&random] { return uint64_t{random()} << 32 | random(); };
  return {word(), word()};
}

class SipState {
 public:
  explicit SipState(const SipKey& key)
      // "somepseudorandomlygeneratedbytes"
      : v_{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
           key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573} {}

  void Add(uint64_t word) {
    v_[3] ^= word;
    Mix(2);
    v_[0] ^= word;
  }

  uint64_t Finish() {
    v_[2] ^= 0xff;
    Mix(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void Mix(int num_rounds) {
    auto& [a, b, c, d] = v_;
    for (int i = 0; i < num_rounds; ++i) {
      a += b;
      c += d;
      b = std::rotl(b, 13) ^ a;
      d = std::rotl(d, 16) ^ c;
      a = std::rotl(a, 32);
      c += b;
      a += d;
      b = std::rotl(b, 17) ^ c;
      d = std::rotl(d, 21) ^ a;
      c = std::rotl(c, 32);
    }
  }

  std::array<uint64_t, 4> v_;
};

inline uint64_t SipHash(const SipKey& key, std::span<const std::byte> message) {
  SipState state(key);
  uint64_t word = 0;  // little-endian
  for (size_t i = 0; i < message.size(); ++i) {
    word |= std::to_integer<uint64_t>(message[i]) << (i % 8 * 8);
    if (i % 8 < 7) continue;
    state.Add(word);
    word = 0;
  }
  state.Add(uint64_t{message.size()} << 56 | word);
  return state.Finish();
}

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_SIP_HASH_H_
