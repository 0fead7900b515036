// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::ffi {
namespace {

// Whether the first row pointer is `mark`, and all others are zero.
bool IsMarked(std::span<const int32_t> row_pointers, int32_t mark) {
  return !row_pointers.empty() && row_pointers[0] == mark &&
         std::ranges::all_of(row_pointers.subspan(1),
                             [](int32_t x) { return x == 0; });
}

}  // namespace

void WriteFailure(std::string_view message,
                  const convert::CsrBuffers& buffers) {
  std::ranges::fill(buffers.row_pointers, 0);
  buffers.row_pointers[0] = kFailedConversion;
  message = FirstCharacters(message, buffers.embedding_ids.size_bytes() +
                                         buffers.sample_ids.size_bytes() +
                                         buffers.gains.size_bytes());
  const auto write = [&message](auto cells) {
    const size_t size = std::min(message.size(), cells.size_bytes());
    std::memset(cells.data(), 0, cells.size_bytes());
    std::memcpy(cells.data(), message.data(), size);
    message.remove_prefix(size);
  };
  write(buffers.embedding_ids);
  write(buffers.sample_ids);
  write(buffers.gains);
}

std::optional<std::string> ReadFailure(const kernels::CooBuffers& buffers) {
  if (!IsMarked(buffers.row_pointers, kFailedConversion)) return std::nullopt;
  std::string message;
  const auto read = [&message](auto cells) {
    message.append(reinterpret_cast<const char*>(cells.data()),
                   cells.size_bytes());
  };
  read(buffers.embedding_ids);
  read(buffers.sample_ids);
  read(buffers.gains);
  message.resize(std::min(message.size(), message.find('\0')));
  if (message.empty()) return std::nullopt;
  return message;
}

void MarkAsRecorded(std::span<int32_t> row_pointers) {
  std::ranges::fill(row_pointers, 0);
  row_pointers[0] = kRecordedFailure;
}

bool IsRecordedFailure(const kernels::CooBuffers& buffers) {
  return IsMarked(buffers.row_pointers, kRecordedFailure);
}

}  // namespace jte::ffi
