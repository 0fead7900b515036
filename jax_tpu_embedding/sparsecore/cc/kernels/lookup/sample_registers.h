// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The ids of samples, each sample's sorted and its repeats added up, in
// registers of AVX-512: what sample_lanes.h does, in half of the time.
//
//   if (ShouldSortInRegisters(number_bits, has_gains, most_ids)) {
//     end = SortInRegisters(samples, first, end, ends);
//   }
//
// There all lanes of a register belong to one sample, so that ids are read and
// entries written as they lie in memory. Processors without AVX-512 lack what
// that takes: permutations of two registers, and lanes that are pushed
// together.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_REGISTERS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_REGISTERS_H_

#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"

namespace jte::kernels {

// Ids of a sample at most: those of eight registers.
inline constexpr int64_t kMaxIdsInRegisters = 128;
// Samples are sorted four at once where they have few ids, since a processor
// waits for each step of one.
inline constexpr int64_t kSamplesInRegisters = 4;

// Samples and their ids, like the arguments of SampleLanes::Sort.
struct UnsortedSamples {
  const uint32_t* numbers;
  std::span<const int64_t> begins;  // of each sample, and the end
  int64_t most_ids;                 // of a sample
  const float* gains;               // of each id; or null, and
  const float* same_gains;          // of the ids of each sample
};

// Whether the processor can, and takes less time than with lanes, where samples
// have so many ids at most and numbers so many bits: five ids or more, and
// where they have gains, a number and its position in the sample fit 31 bits.
bool ShouldSortInRegisters(int number_bits, bool has_gains, int64_t most_ids);

// Writes {number, gain} for each number of each sample, in their order, from
// `out` on, and how many there are up to the end of each sample, counted from
// `first` on; returns the end. Numbers that repeat are one, with the sum of
// their gains from left to right.
//
// Requires: ShouldSortInRegisters; a multiple of kSamplesInRegisters samples,
// of which some may be empty; room for kMaxIdsInRegisters entries more.
WeightedRow* SortInRegisters(const UnsortedSamples& samples,
                             const WeightedRow* first, WeightedRow* out,
                             uint32_t* ends);

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_LOOKUP_SAMPLE_REGISTERS_H_
