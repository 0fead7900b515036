// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The plan of a lookup: the entries of a batch in the order of samples.
// It depends on ids alone, not on tables.
//
// Entries are counted for each sample, put where its own are in the order in
// which threads come, and each then finds its place among those of its sample,
// by a look at all of them. That is fewer launches than a sort, which reads and
// writes more. Of a sample with very many, such looks order runs of them, which
// are merged, so that nothing grows with the square of its entries. If samples
// have very many on average, all is sorted. Of few entries one launch does all.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_SAMPLE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_GROUP_BY_SAMPLE_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

namespace jte::gpu {

// Sample s has the entries [begins[s], begins[s + 1]), in the order of the
// buffers.
struct SampleGroups {
  int32_t* begins;  // samples + 1
  int32_t* rows;    // cells; of the device's table
  float* gains;     // cells
  Flaws* flaws;     // one
};

// What the work needs beside: one for each cell, and room for sums and sorts.
struct SampleGroupsScratch {
  int32_t* rows;
  int32_t* samples;
  int32_t* places;
  int32_t* cells;
  int32_t* has_long_samples;  // one
  Partitions partitions;
  Scratch cub;
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
