// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The entries of a few samples, straight from their ids.
//
//   IdEntries entries;
//   if (entries.Read(plan, feature, slice, numbering)) {
//     ... entries.view() ...  // sample 0 is the first of the slice
//   }
//
// They are what the converter would write and SortBySample find: in each
// sample by partition and row, an id that repeats as one entry with the sum of
// its gains. So a lookup has the same bits from ids and from buffers.
//
// sample_sorter.h sorts them; CPU time per id: see
// docs/design/lookup_from_ids.md.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_ID_ENTRIES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_ID_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/sort_key.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"

namespace jte::kernels {

// Numbers of rows as SpreadRows has them, from keys of the converter.
class RowNumbers {
 public:
  // A device has S * rows_per_shard rows. Requires: all numbers fit 32 bits,
  // and rows of `plan` are below rows_per_shard.
  RowNumbers(const convert::StackPlan& plan, int64_t rows_per_shard);

  // Whether each key is its number.
  bool are_keys() const { return first_rows_.size() == 1; }

  int32_t operator[](uint32_t key) const {
    return static_cast<int32_t>(first_rows_[sort_key_.PartitionOfKey(key)] +
                                sort_key_.RowOf(key));
  }

 private:
  convert::SortKey sort_key_;
  std::vector<uint32_t> first_rows_;  // of each partition
};

class IdEntries {
 public:
  // Reads a slice. Returns false, with nothing useful to view, if an id is
  // outside of the feature's table or a weight is not finite that has to be:
  // then convert::Clean says what that means. Weights are read, whatever the
  // thread is set to, as IEEE 754 says.
  //
  // An id is read once, so that who writes it meanwhile makes it another id and
  // nothing worse.
  bool Read(const convert::StackPlan& plan, const convert::FeaturePlan& feature,
            const convert::Slice& slice, const RowNumbers& numbers);

  SortedSamples view() const { return {entries_, ends_}; }

  size_t capacity_bytes() const {
    return entries_memory_.capacity_bytes() + ends_memory_.capacity_bytes() +
           factors_.capacity_bytes() + keys_memory_.capacity_bytes() +
           gains_memory_.capacity_bytes() + sorter_.capacity_bytes();
  }

 private:
  // Writes keys_; false if an id is outside of the table.
  bool WriteKeysOf(const convert::StackPlan& plan,
                   const convert::FeaturePlan& feature,
                   const convert::Slice& slice);
  // Write entries_ and ends_ from keys_ and gains_; the second one those of
  // samples that have one id each.
  void WriteEntries(const convert::StackPlan& plan, const convert::Slice& slice,
                    const RowNumbers& numbers);
  void WriteSingleEntries(const convert::StackPlan& plan,
                          const convert::Slice& slice,
                          const RowNumbers& numbers);
  // Writes gains_; false if something is not finite that has
  // to be.
  bool WriteGains(const convert::StackPlan& plan,
                  const convert::FeaturePlan& feature,
                  const convert::Slice& slice);

  std::span<const WeightedRow> entries_;
  std::span<const uint32_t> ends_;
  std::span<uint32_t> keys_;      // of every id
  std::span<const float> gains_;  // of every id, if there are weights
  // Of samples that have one id each.
  ScratchArray<WeightedRow> entries_memory_;
  ScratchArray<uint32_t> ends_memory_;
  ScratchArray<float> factors_;
  ScratchArray<uint32_t> keys_memory_;
  ScratchArray<float> gains_memory_;
  SampleSorter sorter_;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_ID_ENTRIES_H_
