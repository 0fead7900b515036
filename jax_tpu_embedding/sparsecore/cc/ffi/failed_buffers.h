// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The message of a conversion that failed, in place of its buffers.
//
// With several devices in one program, a device whose ids are wrong must not
// fail alone: the others would wait for it in the next collective, which ends
// the process. So it hands the message on, and whoever reads the buffers fails,
// on all devices at once (device_records.h).
//
//   row_pointers    kFailedConversion, then zeros
//   embedding_ids   \.
//   sample_ids       } the text, as far as there is room, then zeros
//   gains           /
//
// No converter writes that first row pointer: it is negative. Buffers that have
// it, but not the rest, are corrupt, and their partitions are not valid.
//
// In programs that must not fail, check_batch_ffi.cc reads the message and
// records it (recorded_failures.h). Row pointers that begin with
// kRecordedFailure instead, and then have zeros, are those of a batch,
// converted or not, of which this was done: its lookup gives NaN, and nobody
// updates anything with it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_FAILED_BUFFERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_FAILED_BUFFERS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::ffi {

inline constexpr int32_t kFailedConversion =
    std::numeric_limits<int32_t>::min();
inline constexpr int32_t kRecordedFailure = kFailedConversion + 1;

// Fills `buffers`, which have a row pointer at least, with `message`, which is
// not empty.
void WriteFailure(std::string_view message, const convert::CsrBuffers& buffers);

// The message, if the buffers are those of a failed conversion.
std::optional<std::string> ReadFailure(const kernels::CooBuffers& buffers);

// Marks the buffers of a batch that failed. Requires one row pointer or more.
void MarkAsRecorded(std::span<int32_t> row_pointers);
bool IsRecordedFailure(const kernels::CooBuffers& buffers);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_FAILED_BUFFERS_H_
