// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of samples in the order in which a lookup adds up their rows: by
// number, one that repeats in a sample as one with the sum of its gains.
//
//   SampleSorter sorter;
//   sorter.Sort(ids, num_samples, [&](int64_t s) { return splits[s]; });
//   ... sorter.entries(), sorter.ends() ...
//
// This decides how: in registers (sample_registers.h), in lanes
// (sample_lanes.h), or by digits where samples have very many ids.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_SORTER_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_SORTER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/combiner.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_registers.h"

namespace jte::kernels {

// Ids of all samples, one after the other.
struct UnsortedIds {
  const uint32_t*
      numbers;         // and SampleSorter::kReadsBehind more, of any values
  int number_bits;     // that a number has at most
  const float* gains;  // of each id; or null: what the combiner makes of
  convert::Combiner combiner;  // how many ids the sample has
};

class SampleSorter {
 public:
  // So many numbers behind those of all ids are read.
  static constexpr int64_t kReadsBehind = SampleLanes::kReadsBehind;
  // Numbers of ids are below it.
  static constexpr uint32_t kNoNumber = SampleLanes::kNoNumber;

  // Sorts the ids of each sample: sample s has those at begin_of(s), ...,
  // begin_of(s + 1) - 1 of `ids`. Gains are added up from left to right.
  //
  // Requires: begin_of(0) is 0; at most kMaxSortedEntries ids.
  template <typename BeginOf>
  void Sort(const UnsortedIds& ids, int64_t num_samples,
            const BeginOf& begin_of) {
    WeightedRow* const out =
        entries_memory_.Take(begin_of(num_samples) + kMaxIdsInRegisters).data();
    WeightedRow* end = out;
    ends_ = ends_memory_.Take(num_samples + kSamples).first(num_samples);
    for (int64_t first = 0; first < num_samples; first += kSamples) {
      // Those that there are not have no ids.
      SampleLanes::Begins begins;
      for (int64_t k = 0; k <= kSamples; ++k) {
        begins[k] = begin_of(std::min(first + k, num_samples));
      }
      end = SortSome(ids, begins, out, end, ends_.data() + first);
    }
    entries_ = {out, end};
  }

  // {number, gain} of each number of each sample, sample by sample, whose
  // numbers the caller may replace by others.
  std::span<WeightedRow> entries() const { return entries_; }
  // Where the entries of each sample end.
  std::span<uint32_t> ends() const { return ends_; }

  size_t capacity_bytes() const {
    return entries_memory_.capacity_bytes() + ends_memory_.capacity_bytes() +
           lanes_.capacity_bytes() + elements_.capacity_bytes() +
           sorted_elements_.capacity_bytes();
  }

 private:
  // Samples that are sorted together.
  static constexpr int64_t kSamples = SampleLanes::kLanes;
  static_assert(kSamples % kSamplesInRegisters == 0);

  // Writes the entries of kSamples samples from `out` on, and where those of
  // each end, counted from `first` on; returns the end.
  WeightedRow* SortSome(const UnsortedIds& ids,
                        const SampleLanes::Begins& begins,
                        const WeightedRow* first, WeightedRow* out,
                        uint32_t* ends);
  // Writes the entries of a sample with the ids [begin, end), which are many,
  // from `out` on; returns the end.
  WeightedRow* SortLong(const UnsortedIds& ids, int64_t begin, int64_t end,
                        float same_gain, WeightedRow* out);

  std::span<WeightedRow> entries_;
  std::span<uint32_t> ends_;
  ScratchArray<WeightedRow> entries_memory_;
  ScratchArray<uint32_t> ends_memory_;
  SampleLanes lanes_;
  ScratchArray<uint64_t> elements_;
  ScratchArray<uint64_t> sorted_elements_;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_SORTER_H_
