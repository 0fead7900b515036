// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A file of a number of bytes and their CRC-32C, lowest byte first: a chunk of
// zarr with the codecs "bytes" and "crc32c". The checksum is that of what is in
// the cache at the time, so it takes no second pass over memory.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CHECKED_FILE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CHECKED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"

namespace jte::files {

// Writes `values` and zeros, `num_bytes` in all, and their checksum, and waits
// until the disk has them. Replaces a file that is there. An error leaves what
// was written of it.
Result<void> WriteChecked(const std::string& path,
                          std::span<const std::byte> values, size_t num_bytes);

// Reads the first bytes of a file that has `num_bytes` and their checksum,
// which is compared. An error leaves anything in `values`.
Result<void> ReadChecked(const std::string& path, std::span<std::byte> values,
                         size_t num_bytes);

}  // namespace jte::files

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FILES_CHECKED_FILE_H_
