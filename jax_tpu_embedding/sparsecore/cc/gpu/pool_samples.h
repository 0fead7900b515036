// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The lookup: gather rows, weigh them, add them up for each sample.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_POOL_SAMPLES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_POOL_SAMPLES_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

// As SampleGroups of group_by_sample.h.
struct ConstSampleGroups {
  const int32_t* begins;
  const int32_t* rows;
  const float* gains;
  const Flaws* flaws;
};

// Rounds values of rows; see kernels/lookup/pool_samples.h.
struct QuantizedTo {
  bool is_on;
  float min;
  float max;
  float scale;  // (buckets - 1) / (max - min)
  float step;   // (max - min) / (buckets - 1)
};

// activations[s, :] = the sum of gain * row over the entries of sample s, from
// left to right. NaN everywhere if the buffers have flaws.
//
// num_cells: as many entries as there can be. T: float, Bfloat16, Float16, or
// kernels::CodeWord for rows of CodeWordsPerRow(dim) words. Returns null, or
// the message of an error.
template <typename T>
const char* PoolSamples(Stream stream, const ConstSampleGroups& groups,
                        int64_t num_cells, const T* table, int64_t num_samples,
                        int64_t dim, const QuantizedTo& quantized,
                        float* activations);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_POOL_SAMPLES_H_
