// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the devices of one process tell each other, so that each can read the
// others' buffers where they are.
//
// A record travels in an XLA all-gather, which is the first of two barriers: a
// device reads only what every device has made ready. The second one comes
// after reading, and until then XLA must keep the buffers (jte_hold_cpu).
//
// A device whose buffers are corrupt says so in its record. Then all devices
// fail in the same call: one that failed alone would leave the others waiting
// in the next collective, which ends the process. A single device fails the
// same way in an update without a kernel that checks its buffers.
//
// A record is data of a program, which may be of another process or of an
// attacker, and holds addresses. So it has a seal, that only this process can
// make: over the addresses and over the sizes of what is there. A reader, who
// expects the sizes of its own buffers, follows no address of a record without.
// (Nothing but the program sees to it that the buffers are still there.)

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_DEVICE_RECORDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_DEVICE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

using Words = xla::ffi::BufferR1<xla::ffi::U32>;          // of one record
using WordsByDevice = xla::ffi::BufferR2<xla::ffi::U32>;  // in mesh order

// What a device publishes. It travels as 32-bit words, because JAX has no wider
// ones by default.
struct DeviceRecord {
  const int32_t* row_pointers;
  const int32_t* embedding_ids;
  const int32_t* sample_ids;
  const float* gains;
  const void* rows;  // of the table or the gradient
  uint64_t seal;     // of the above
  char error[208];   // ends with a zero; empty if the buffers are valid
};

inline constexpr int64_t kRecordWords = 64;
static_assert(sizeof(DeviceRecord) == kRecordWords * sizeof(uint32_t));
// lib/core/lowering/exchange/device_records.py looks into records too: the word
// where the error begins (_ERROR_WORD) is 0 if there is none.
static_assert(offsetof(DeviceRecord, error) == 12 * sizeof(uint32_t));

// What a device has for the others. Sizes and geometry are those of every
// device.
struct Published {
  kernels::CooBuffers buffers;
  std::span<const std::byte> rows;
  kernels::CooGeometry geometry;
};

DeviceRecord MakeRecord(const Published& published);

// A record of an error: as much of the message as there is room for.
DeviceRecord MakeErrorRecord(std::string_view message);

// The records of all devices, for who follows no address. InvalidArgument, with
// the message of the first one that has an error.
Result<std::vector<DeviceRecord>> ReadRecords(const WordsByDevice& words,
                                              int64_t num_devices);

// What the devices have that `words` are the records of; `own` is what this one
// has published, or has the sizes. InvalidArgument, besides, unless this
// process has published all of it.
Result<std::vector<Published>> ReadPublished(const WordsByDevice& words,
                                             const Published& own);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_DEVICE_RECORDS_H_
