// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The sample of each id of a slice.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_IDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_IDS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/convert/slice.h"

namespace jte {

// Hands them out block by block, small enough that a block stays in the L1
// cache until its reader is done.
//
//   SampleIds samples(slice);
//   samples.Next(512, block);  // of the first 512 ids
//   samples.Next(100, block);  // of the next 100
class SampleIds {
 public:
  // How far Next may write beyond the samples it was asked for.
  static constexpr int64_t kSlack = 32;

  // `slice` outlives this.
  explicit SampleIds(const Slice& slice);

  // Writes the samples of the next n ids; there are as many.
  void Next(int64_t n, uint32_t* samples);

 private:
  void Repeat(int64_t n, uint32_t* samples);

  const Slice& slice_;
  int64_t position_ = 0;  // the next id
  int64_t row_ = 0;       // its sample, if looked up
  // If computed, for samples of v ids: ceil(2^32 / v); else 0.
  uint64_t multiplier_ = 0;
};

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_IDS_H_
