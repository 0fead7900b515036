// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/files/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace jte::files {
namespace {

static_assert(std::endian::native == std::endian::little);

// 0x1edc6f41, the lowest bit first.
constexpr uint32_t kPolynomial = 0x82f63b78;

// [k][b]: the remainder of byte b with k zero bytes after it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ (remainder & 1 ? kPolynomial : 0);
    }
    tables[0][byte] = remainder;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = tables[0][shorter & 0xff] ^ (shorter >> 8);
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint64_t Load64(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

#if defined(__x86_64__)

// The instruction takes three cycles, and one can begin in each: so there are
// three streams of this many bytes side by side, of which the remainders are
// put together.
//
// Source: V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using
// CRC32 Instruction", Intel, 2011.
constexpr size_t kStreamBytes = 2048;

// [k][b]: what becomes of byte k of a remainder, b, behind which there are
// kStreamBytes zero bytes.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

Shift MakeShift() {
  Shift shift;
  for (size_t k = 0; k < shift.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t remainder = byte << (8 * k);
      for (size_t i = 0; i < kStreamBytes; ++i) {
        remainder = kTables[0][remainder & 0xff] ^ (remainder >> 8);
      }
      shift[k][byte] = remainder;
    }
  }
  return shift;
}

uint32_t BehindAStream(uint32_t remainder) {
  static const Shift kShift = MakeShift();
  return kShift[0][remainder & 0xff] ^ kShift[1][(remainder >> 8) & 0xff] ^
         kShift[2][(remainder >> 16) & 0xff] ^ kShift[3][remainder >> 24];
}

[[gnu::target("sse4.2")]] uint32_t Remainder(uint32_t remainder,
                                             std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kStreamBytes; left -= 3 * kStreamBytes) {
    uint64_t first = remainder;
    uint64_t second = 0;
    uint64_t third = 0;
    for (const std::byte* end = at + kStreamBytes; at < end; at += 8) {
      first = _mm_crc32_u64(first, Load64(at));
      second = _mm_crc32_u64(second, Load64(at + kStreamBytes));
      third = _mm_crc32_u64(third, Load64(at + 2 * kStreamBytes));
    }
    remainder = BehindAStream(static_cast<uint32_t>(first)) ^
                static_cast<uint32_t>(second);
    remainder = BehindAStream(remainder) ^ static_cast<uint32_t>(third);
    at += 2 * kStreamBytes;
  }
  for (; left >= 8; left -= 8, at += 8) {
    remainder = static_cast<uint32_t>(_mm_crc32_u64(remainder, Load64(at)));
  }
  for (; left > 0; --left, ++at) {
    remainder = _mm_crc32_u8(remainder, std::to_integer<uint8_t>(*at));
  }
  return remainder;
}

#endif

}  // namespace

uint32_t ExtendCrc32cByTables(uint32_t crc, std::span<const std::byte> bytes) {
  uint32_t remainder = ~crc;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const uint64_t word = Load64(at) ^ remainder;
    remainder = 0;
    for (size_t k = 0; k < 8; ++k) {
      remainder ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
    }
  }
  for (; left > 0; --left, ++at) {
    remainder = kTables[0][(remainder ^ std::to_integer<uint8_t>(*at)) & 0xff] ^
                (remainder >> 8);
  }
  return ~remainder;
}

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  return ~Remainder(~crc, bytes);
#else
  return ExtendCrc32cByTables(crc, bytes);
#endif
}

}  // namespace jte::files
