// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"

namespace jte {

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
    const char* const error = records[device].error;
    if (error[0] == '\0') continue;
    if (num_devices == 1) return InvalidArgument(error);
    return InvalidArgument("Device ", device, " of the axis: ", error);
  }
  return records;
}

CooBuffers BuffersOf(const DeviceRecord& record, const CooBuffers& own) {
  return {
      .row_pointers = {record.row_pointers, own.row_pointers.size()},
      .embedding_ids = {record.embedding_ids, own.embedding_ids.size()},
      .sample_ids = {record.sample_ids, own.sample_ids.size()},
      .gains = {record.gains, own.gains.size()},
  };
}

}  // namespace jte
