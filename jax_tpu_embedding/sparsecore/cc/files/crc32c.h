// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// CRC-32C, the checksum of iSCSI and of zarr's codec "crc32c".
//
//   Crc32c("123456789") == 0xe3069283
//
// In parts: ExtendCrc32c(Crc32c(first), second) is that of both.
//
// Source: RFC 3720, section 12.1 and appendix B.4. Complexity: 0.07 ns a byte
// with SSE4.2, which every x86-64-v2 has, else about 0.6.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CRC32C_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace jte::files {

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

// The same by tables, which defines what is correct.
uint32_t ExtendCrc32cByTables(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t Crc32c(std::span<const std::byte> bytes) {
  return ExtendCrc32c(0, bytes);
}

}  // namespace jte::files

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CRC32C_H_
