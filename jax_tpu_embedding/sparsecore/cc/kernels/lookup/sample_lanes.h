// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of several samples, each sample's sorted and its repeats added up:
// one sample in each lane of vectors.
//
//   SampleLanes lanes;
//   lanes.Sort(numbers, begins, gains);
//   for (int64_t k = 0; k < num_samples; ++k) end = lanes.Write(k, end);
//
// Ids are sorted by a network of minima and maxima (Batcher's odd-even merge;
// "Sorting networks and their applications", 1968), and nothing here branches
// on them: of Zipf ids nearly every sample has one twice, at a place that no
// processor guesses. docs/design/lookup_from_ids.md has the time.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_LANES_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_LANES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"

namespace jte::kernels {

class SampleLanes {
 public:
  // Samples that are sorted together.
  static constexpr int64_t kLanes = 16;
  // Ids of a sample at most: what the network does grows faster than they.
  static constexpr int64_t kMaxIds = 128;
  // Where the ids of each sample begin, among those of many samples; at the
  // end, where those of the last one end.
  using Begins = std::array<int64_t, kLanes + 1>;
  // So many numbers behind the ids of all samples are read, of any values.
  static constexpr int64_t kReadsBehind = 3;
  // Numbers of ids are below it.
  static constexpr uint32_t kNoNumber = ~uint32_t{0};

  // Sorts the ids of each sample: those of sample k have the numbers
  // numbers[begins[k]], ..., numbers[begins[k + 1] - 1] and the gain gains[k].
  //
  // Requires: no sample has more than kMaxIds ids.
  void Sort(const uint32_t* numbers, const Begins& begins,
            const std::array<float, kLanes>& gains);

  // The same, with a gain for each id, in the places of the numbers. Numbers
  // have `number_bits` bits at most.
  void Sort(const uint32_t* numbers, const Begins& begins, int number_bits,
            const float* gains);

  // Writes {number, gain} for each number of sample k, in their order, from
  // `out` on; returns the end. Numbers that repeat are one, with the sum of
  // their gains from left to right. May write as much as the sample has ids.
  WeightedRow* Write(int64_t k, WeightedRow* out) const {
    const int64_t size = sizes_[k];
    const auto* const numbers =
        reinterpret_cast<const int32_t*>(numbers_ + k * lane_size_);
    if (has_repeats_) {
      const float* const sums = gains_ + k * lane_size_;
      for (int64_t i = 0; i < size; ++i) {
        *out = {numbers[i], sums[i]};
        out += numbers[i] != numbers[i + 1];
      }
    } else if (gains_ != nullptr) {
      const float* const gains = gains_ + k * lane_size_;
      for (int64_t i = 0; i < size; ++i) *out++ = {numbers[i], gains[i]};
    } else {
      const float gain = same_gains_[k];
      for (int64_t i = 0; i < size; ++i) *out++ = {numbers[i], gain};
    }
    return out;
  }

  size_t capacity_bytes() const {
    return row_memory_.capacity_bytes() + position_memory_.capacity_bytes() +
           gain_row_memory_.capacity_bytes() + sum_memory_.capacity_bytes() +
           number_memory_.capacity_bytes() + gain_memory_.capacity_bytes();
  }

 private:
  // Writes sizes_ and rows_.
  void MakeRows(const uint32_t* numbers, const Begins& begins);
  // Writes numbers_, from rows_.
  void MakeLanes();
  // Writes gains_: of numbers that are the same above `bits`, the sums of
  // gains[i * stride + k].
  void SumRepeats(int bits, const float* gains, int64_t stride);

  std::array<int32_t, kLanes> sizes_;
  int64_t num_rows_ = 0;   // ids of the largest sample, and some to fill up
  int64_t lane_size_ = 0;  // one more, and some
  bool has_repeats_ = false;
  // Number i of sample k is rows_[i * kLanes + k] and numbers_[k * lane_size_ +
  // i]; behind those of each sample there is another number.
  uint32_t* rows_ = nullptr;
  uint32_t* numbers_ = nullptr;
  // Like numbers_; none where a sample's are the same and nothing repeats.
  float* gains_ = nullptr;
  std::array<float, kLanes> same_gains_;

  ScratchArray<uint32_t> row_memory_;
  ScratchArray<uint32_t> position_memory_;
  ScratchArray<float> gain_row_memory_;
  ScratchArray<float> sum_memory_;
  ScratchArray<uint32_t> number_memory_;
  ScratchArray<float> gain_memory_;
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_LANES_H_
