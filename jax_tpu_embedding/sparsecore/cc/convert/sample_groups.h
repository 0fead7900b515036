// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Numbers that come with the index of a sample, grouped by it.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_GROUPS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_GROUPS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/raw_array.h"

namespace jte {

struct SampleOrder {
  // First number whose index is out of range; -1: none.
  int64_t first_out_of_range = -1;
  bool ascending = true;
};

// Writes row_splits: sample r has [row_splits[r], row_splits[r + 1]) of the
// numbers once they are grouped. `samples` is int32 or int64 in the machine's
// byte order; row_splits has one element more than there are samples. If an
// index is out of range, row_splits is unspecified.
//
// One pass if the indices ascend, two otherwise.
SampleOrder CountSamples(const StridedArray& samples,
                         std::span<int64_t> row_splits);

// Stable counting sort: order[i] is the number that is the i-th once they are
// grouped. `cursors` is scratch, one per sample.
void OrderBySample(const StridedArray& samples,
                   std::span<const int64_t> row_splits,
                   std::span<int64_t> cursors, std::span<int64_t> order);

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_SAMPLE_GROUPS_H_
