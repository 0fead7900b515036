// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Operands and results whose number is that of the devices: the blocks of a
// message (kernels/exchange/messages.h); and those that have one part of each.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_MESSAGE_BLOCKS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_MESSAGE_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// InvalidArgument, naming `name`, unless there are blocks, all of one size.
template <typename Buffer>
Result<void> CheckBlocks(const std::vector<Buffer>& blocks,
                         std::string_view name) {
  if (blocks.empty()) {
    return InvalidArgument("There are no ", name, ", expected one or more.");
  }
  for (const Buffer& block : blocks) {
    if (block.element_count() == blocks.front().element_count()) continue;
    return InvalidArgument(
        "The ", name, " have ", blocks.front().element_count(), " and ",
        block.element_count(), " elements, expected as many in each.");
  }
  return {};
}

// `count` operands from number `first` on; InvalidArgument, naming `name`, if
// one is missing or no Buffer, or CheckBlocks says so.
template <typename Buffer>
Result<std::vector<Buffer>> ReadBlocks(xla::ffi::RemainingArgs args,
                                       size_t first, size_t count,
                                       std::string_view name) {
  std::vector<Buffer> blocks;
  for (size_t k = first; k < first + count; ++k) {
    const auto block = args.get<Buffer>(k);
    if (block.has_error()) {
      return InvalidArgument("Operand ", k, " of ", args.size(),
                             " is none of the ", name, ".");
    }
    blocks.push_back(*block);
  }
  JTE_RETURN_IF_ERROR(CheckBlocks(blocks, name));
  return blocks;
}

// The same of the first `count` results.
template <typename Buffer>
Result<std::vector<Buffer>> ReadBlocks(xla::ffi::RemainingRets rets,
                                       size_t count, std::string_view name) {
  std::vector<Buffer> blocks;
  for (size_t k = 0; k < count; ++k) {
    auto block = rets.get<Buffer>(k);
    if (block.has_error()) {
      return InvalidArgument("Result ", k, " of ", rets.size(),
                             " is none of the ", name, ".");
    }
    blocks.push_back(**block);
  }
  JTE_RETURN_IF_ERROR(CheckBlocks(blocks, name));
  return blocks;
}

// Number `k` of the `num_devices` parts of what has one of each device.
template <typename T>
std::span<T> PartOf(std::span<T> all, int64_t k, int64_t num_devices) {
  const int64_t size = std::ssize(all) / num_devices;
  return all.subspan(k * size, size);
}

inline kernels::CooBuffers PartOf(const kernels::CooBuffers& all, int64_t k,
                                  int64_t num_devices) {
  return {.row_pointers = PartOf(all.row_pointers, k, num_devices),
          .embedding_ids = PartOf(all.embedding_ids, k, num_devices),
          .sample_ids = PartOf(all.sample_ids, k, num_devices),
          .gains = PartOf(all.gains, k, num_devices)};
}

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_MESSAGE_BLOCKS_H_
