// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The plan of a lookup: the entries of a batch in the order of samples.
// It depends on ids alone, not on tables.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_SAMPLE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_SAMPLE_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {

// Sample s has the entries [begins[s], begins[s + 1]), in the order of the
// buffers. The gains of corrupt buffers are NaN.
struct SampleGroups {
  int32_t* begins;  // samples + 1
  int32_t* rows;    // cells; of the device's table
  float* gains;     // cells
  Flaws* flaws;     // one
};

// What the work needs beside: one for each cell, and room for a sort.
struct SampleGroupsScratch {
  int32_t* rows;
  int32_t* keys;
  int32_t* sorted_keys;
  int32_t* cells;
  int32_t* sorted_cells;
  Partitions partitions;
  Scratch sort;
};

// Requires: one device has all tables. Returns null, or the message of an
// error.
const char* GroupBySample(Stream stream, const CooBuffers& buffers,
                          const CooGeometry& geometry,
                          const SampleGroupsScratch& scratch,
                          const SampleGroups& groups);

// Entries whose rows and samples are known, as pack_messages.h has them.
// Samples from num_samples on are none.
struct KnownEntries {
  const int32_t* rows;
  const int32_t* samples;
  const float* gains;
  int64_t num_cells;
};

// The same of these. Flaws are only read; scratch.rows and partitions are not
// used.
const char* GroupKnownBySample(Stream stream, const KnownEntries& entries,
                               int64_t num_samples,
                               const SampleGroupsScratch& scratch,
                               const SampleGroups& groups);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_SAMPLE_H_
