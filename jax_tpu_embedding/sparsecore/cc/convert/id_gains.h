// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The gains of a slice's ids, in two steps: a factor for each sample, then a
// gain for each id.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ID_GAINS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ID_GAINS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/gain_source.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/slice.h"

namespace jte {

// factors[s] becomes that of sample s of the SparseCore: without weights the
// gain of its ids, with weights what these are divided by. That of a sample
// without ids is never used.
void WriteSampleFactors(Combiner combiner, const Slice& slice,
                        std::span<float> factors);

// Writes the gains of the n ids from `begin` on, whose samples are `samples`.
// Reads factors unless the slice has weights and the combiner is sum.
void WriteIdGains(Combiner combiner, const Slice& slice, int64_t begin,
                  int64_t n, const uint32_t* samples,
                  std::span<const float> factors, float* gains);

// Puts samples and gains next to each other.
void ZipIds(const uint32_t* samples, const float* gains, int64_t n,
            WeightedId* ids);

bool AreFinite(std::span<const float> weights);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_ID_GAINS_H_
