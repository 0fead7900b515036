// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Raw ids of one stack on one device to buffers: the converter on a GPU.
//
// Each id becomes an occurrence (occurrences.h). A stable sort by the
// SparseCore that reads, shard and row keeps samples, and repeats of an id in
// a sample, in order; repeats become one entry; entries get their cells. The
// bytes are those of convert/converter.h without minibatching, but for the
// gains of cells that hold no entry, which are 0.
//
// Source: lib/core/lowering/reference/conversion.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_CONVERT_IDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_CONVERT_IDS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/gpu/occurrences.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {

struct ConvertedIds {
  int32_t* row_pointers;
  int32_t* embedding_ids;
  int32_t* sample_ids;
  float* gains;
};

struct ConversionScratch {
  // Of each id.
  Occurrences occurrences;
  int32_t* other_keys;
  int32_t* other_order;
  // Of each sample of all features.
  float* factors;
  // Of each block: of a SparseCore that reads, and a shard.
  int32_t* first_entries;  // and one more
  int32_t* cells;
  int32_t* ends;
  ConversionErrors errors;
  Scratch sort;
};

// error_mark: the first row pointer if anything is an error; the others are
// zeros. 0: row pointers do not say it. Requires: all ids together, and cells,
// have numbers of 31 bits. Returns null, or the message of an error.
const char* ConvertIds(Stream stream, std::span<const RawIds> features,
                       const ConversionGeometry& geometry, int32_t error_mark,
                       const ConversionScratch& scratch,
                       const ConvertedIds& buffers);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_CONVERT_IDS_H_
