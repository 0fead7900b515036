// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/sip_hash.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::ffi {
namespace {

uint64_t Seal(const Published& published) {
  static const SipKey kKey = RandomSipKey();
  const auto& [buffers, rows, geometry] = published;
  const auto address = [](const void* data) {
    return reinterpret_cast<int64_t>(data);
  };
  const int64_t words[] = {
      // A child that was forked has the key of its parent.
      getpid(),
      address(buffers.row_pointers.data()),
      address(buffers.embedding_ids.data()),
      address(buffers.sample_ids.data()),
      address(buffers.gains.data()),
      address(rows.data()),
      std::ssize(buffers.row_pointers),
      std::ssize(buffers.embedding_ids),
      std::ssize(rows),
      geometry.num_sc_per_device,
      geometry.rows_per_shard,
      geometry.batch_size_per_sc,
      geometry.enable_minibatching,
      geometry.num_minibatches,
      geometry.num_devices,
  };
  return SipHash(kKey, std::as_bytes(std::span(words)));
}

}  // namespace

DeviceRecord MakeRecord(const Published& published) {
  const kernels::CooBuffers& buffers = published.buffers;
  return {.row_pointers = buffers.row_pointers.data(),
          .embedding_ids = buffers.embedding_ids.data(),
          .sample_ids = buffers.sample_ids.data(),
          .gains = buffers.gains.data(),
          .rows = published.rows.data(),
          .seal = Seal(published),
          .error = {}};
}

DeviceRecord MakeErrorRecord(std::string_view message) {
  DeviceRecord record{};
  FirstCharacters(message, sizeof(record.error) - 1)
      .copy(record.error, sizeof(record.error) - 1);
  return record;
}

Result<std::vector<DeviceRecord>> ReadRecords(const WordsByDevice& words,
                                              int64_t num_devices) {
  if (words.dimensions()[0] != num_devices ||
      words.dimensions()[1] != kRecordWords) {
    return InvalidArgument("The records have shape [", words.dimensions()[0],
                           ", ", words.dimensions()[1], "], expected [",
                           num_devices, ", ", kRecordWords, "].");
  }
  std::vector<DeviceRecord> records(num_devices);
  std::memcpy(records.data(), words.typed_data(), words.size_bytes());
  for (int64_t device = 0; device < num_devices; ++device) {
    const std::span error = records[device].error;
    if (error[0] == '\0') continue;
    const std::string_view message(error.begin(),
                                   std::ranges::find(error, '\0'));
    if (num_devices == 1) return InvalidArgument(message);
    return InvalidArgument("Device ", device, " of the axis: ", message);
  }
  return records;
}

Result<std::vector<Published>> ReadPublished(const WordsByDevice& words,
                                             const Published& own) {
  JTE_ASSIGN_OR_RETURN(const auto records,
                       ReadRecords(words, own.geometry.num_devices));
  std::vector<Published> devices;
  for (const DeviceRecord& record : records) {
    const kernels::CooBuffers& sizes = own.buffers;
    const Published published = {
        .buffers = {.row_pointers = {record.row_pointers,
                                     sizes.row_pointers.size()},
                    .embedding_ids = {record.embedding_ids,
                                      sizes.embedding_ids.size()},
                    .sample_ids = {record.sample_ids, sizes.sample_ids.size()},
                    .gains = {record.gains, sizes.gains.size()}},
        .rows = {static_cast<const std::byte*>(record.rows), own.rows.size()},
        .geometry = own.geometry};
    if (record.seal != Seal(published)) {
      return InvalidArgument(
          "The record of device ", devices.size(),
          " of the axis is none that this process has published for buffers of "
          "these sizes. The devices of one program must be of one process, and "
          "have buffers of the same sizes and number of minibatches.");
    }
    devices.push_back(published);
  }
  return devices;
}

}  // namespace jte::ffi
