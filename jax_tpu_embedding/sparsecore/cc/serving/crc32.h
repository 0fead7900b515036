// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// CRC-32 as zlib and Python's zlib.crc32 have it: the checksum of served files.
// (Checkpoints have CRC-32C, another polynomial: cc/files.)
//
// Source: ISO 3309; slicing by 8: Kounavis and Berry, "A Systematic Approach to
// Building High Performance Software-based CRC Generators", ISCC 2005.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_CRC32_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_CRC32_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace jte::serving {

// [k][b]: the remainder of byte b and k bytes of zeros after it.
inline constexpr auto kCrc32Tables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables = {};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}();

inline uint32_t Crc32(std::span<const std::byte> data) {
  uint32_t crc = ~uint32_t{0};
  while (data.size() >= 8) {
    uint32_t next = 0;
    for (size_t i = 0; i < 8; ++i) {
      const uint32_t before = i < 4 ? crc >> 8 * i & 255 : 0;
      const auto byte = std::to_integer<uint32_t>(data[i]);
      next ^= kCrc32Tables[7 - i][before ^ byte];
    }
    crc = next;
    data = data.subspan(8);
  }
  for (const std::byte byte : data) {
    const auto index = (crc ^ std::to_integer<uint32_t>(byte)) & 255;
    crc = crc >> 8 ^ kCrc32Tables[0][index];
  }
  return ~crc;
}

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_CRC32_H_
