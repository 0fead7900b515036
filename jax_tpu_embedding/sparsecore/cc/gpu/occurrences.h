// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The first stage of a conversion: what each id of a stack becomes, feature by
// feature, in the order of the ids.
//
// A GPU cannot raise in the middle of a program. What the CPU's converter calls
// an error makes gains NaN:
//
//   id outside of its table        the gain of that id
//   weight that is not finite      the gains of the sample (with kSum, of that
//                                  id)
//   row splits that descend, or    the gains of the feature; its ids are shared
//   lead beyond the ids            out evenly among its samples
//
// Source: lib/core/lowering/reference/occurrences.py.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_OCCURRENCES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_OCCURRENCES_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {

enum class IdType { kInt32, kInt64, kUint32, kUint64 };

// The ids of a feature on one device, in the GPU's memory, and what they mean.
struct RawIds {
  const void* ids;
  IdType type;
  const float* weights;  // of each id; or null
  // num_samples + 1. Ids behind the last are of no sample. Null: each sample
  // has `valency` ids.
  const int32_t* row_splits;
  int64_t valency;
  int64_t num_ids;
  int64_t num_samples;
  int64_t vocabulary_size;
  convert::IdPolicy id_policy;
  convert::WeightPolicy weight_policy;
  // Sample r is number (samples_before + r) % samples_per_sc of SparseCore
  // (samples_before + r) / samples_per_sc; first_sample_id is added to that.
  int64_t samples_before;
  int64_t samples_per_sc;
  int64_t first_sample_id;
  int64_t first_row;  // of its table, in each shard
  int64_t rotation;   // of the shards; below their number
};

struct ConversionGeometry {
  convert::Combiner combiner;
  int64_t num_shards;  // of the stack, on all devices
  int64_t num_sc_per_device;
  int64_t rows_per_shard;          // that features name
  int64_t row_pointers_per_block;  // num_shards or more
  int64_t cells_per_sc;            // enough for all ids, and their alignment
};

// Occurrences are sorted by block and row. Both in one number have up to 62
// bits, and a sort takes a word of 31, the lowest first.
inline constexpr int kSortWordBits = 31;
JTE_DEVICE int32_t SortWord(const ConversionGeometry& geometry, int64_t block,
                            int64_t row, int word) {
  const int64_t key = block * geometry.rows_per_shard + row;
  return static_cast<int32_t>(key >> (word * kSortWordBits) &
                              ((int64_t{1} << kSortWordBits) - 1));
}

// Of each id.
struct Occurrences {
  int32_t* blocks;   // SparseCore * shards + shard; of those left out, the next
                     // number after all of these
  int32_t* rows;     // in the shard; 0 of those left out
  int32_t* samples;  // sample ids
  float* gains;
  int32_t* keys;   // the lowest words that they are sorted by
  int32_t* order;  // before the sort: their numbers
};

// 0 where there are none.
struct ConversionErrors {
  int32_t* any;         // one
  int32_t* row_splits;  // of each feature
};

// Features share launches. factors: scratch memory, one for each sample of all
// features. errors: set if there are any, and else left as they are. Returns
// null, or the message of an error.
const char* FindOccurrences(Stream stream, std::span<const RawIds> features,
                            const ConversionGeometry& geometry, float* factors,
                            const ConversionErrors& errors,
                            const Occurrences& occurrences);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_OCCURRENCES_H_
