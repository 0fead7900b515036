// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a device asks the others for, and its entries in terms of the answers:
// kernels/exchange/messages.h on a GPU. A message is one array with the places
// of all devices, C for each.
//
// Source: lib/core/lowering/exchange/messages.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_PACK_MESSAGES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_PACK_MESSAGES_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {

// Where a place asks for no row.
inline constexpr int32_t kNoRow = -1;

// Every SparseCore asks for each of its rows once. If buffers are corrupt, or
// more than C rows are wanted of a device, there are flaws, and all gains are
// NaN.
struct PackedMessages {
  int32_t* requests;  // [G C]: rows of the tables of the devices, or kNoRow
  // Of each cell:
  int32_t* places;   // of the answer, or G C where there is no entry
  int32_t* samples;  // of the device's batch, or its size
  float* gains;      // or 0
  Flaws* flaws;      // one
};

struct PackScratch {
  // Of each cell.
  int32_t* partitions_of_cells;
  int32_t* are_first;
  int32_t* num_first;
  // Of each partition.
  int32_t* offsets;
  Partitions partitions;
  Scratch sort;
};

// capacity: C, at least 1. Requires: places have 31 bits. Returns null, or the
// message of an error.
const char* PackMessages(Stream stream, const CooBuffers& buffers,
                         const CooGeometry& geometry, int64_t capacity,
                         const PackScratch& scratch,
                         const PackedMessages& messages);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_PACK_MESSAGES_H_
