// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Numbers that come with the index of a sample, grouped by it.
//
// Indices are read where the caller has them, who may write them meanwhile: the
// result is then any, and no function reads or writes beyond its arguments.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_SAMPLE_GROUPS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_SAMPLE_GROUPS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

namespace jte::convert {

// In what follows, `samples` is int32 or int64 in the machine's byte order, and
// row_splits has one element more than there are samples: sample r has
// [row_splits[r], row_splits[r + 1]) of the numbers once they are grouped.

// If the indices ascend, and none is out of range, writes row_splits and
// returns true. Otherwise row_splits is unspecified. One pass.
bool SplitAscending(const StridedArray& samples, std::span<int64_t> row_splits);

// For any indices: copies them, and writes row_splits. Returns the first number
// whose index is out of range, in which case the rest of the copy and
// row_splits are unspecified; -1 if there is none. One pass.
int64_t CountSamples(const StridedArray& samples, std::span<int64_t> copy,
                     std::span<int64_t> row_splits);

// Stable counting sort of what CountSamples copied and counted: order[i] is the
// number that is the i-th once they are grouped. `cursors` is scratch, one per
// sample.
void OrderBySample(std::span<const int64_t> samples,
                   std::span<const int64_t> row_splits,
                   std::span<int64_t> cursors, std::span<int64_t> order);

}  // namespace jte::convert

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_CONVERT_INPUT_SAMPLE_GROUPS_H_
