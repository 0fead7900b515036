// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The rows that samples name, with their gains, in the order in which they are
// added up: by row, an id that repeats as one row with the sum of its gains.
//
// That is the order of `lookup_ids` on one SparseCore
// (docs/design/lookup_from_ids.md), sorted by the same class; gains are those
// of training (convert/stages/gains.h). So sums have the same bits.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SAMPLE_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SAMPLE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

namespace jte::serving {

// Negative ids are out of range like large ones.
using Ids = std::variant<std::span<const int32_t>, std::span<const int64_t>>;

inline int64_t NumIds(const Ids& ids) {
  return std::visit([](auto span) { return std::ssize(span); }, ids);
}

class SampleRows {
 public:
  // Reads samples: sample s has the ids [splits[s], splits[s + 1]) of `ids` and
  // as many of `weights`, which may be empty: every weight is 1. Ids are read
  // once each, so that who writes them meanwhile makes them other ids and
  // nothing worse. An id that is not in the table is a row of zeros.
  //
  // Returns whether all ids are in the table; overflowing_sample() says whether
  // the weights of one overflow.
  //
  // Requires: splits ascend and are positions of ids.
  bool Read(const MappedTable& table, convert::Combiner combiner,
            const Ids& ids, std::span<const float> weights,
            std::span<const int64_t> splits);

  // Reads one row for each id, in their order, with no gain.
  bool ReadEach(const MappedTable& table, const Ids& ids);

  std::span<const WeightedRow> rows() const { return rows_; }
  std::span<const int64_t> ends() const { return ends_; }
  // The first sample whose weights have a WeightDivisor that is not finite,
  // with which it would be zeros: if all weights are finite, more than float32
  // holds.
  std::optional<int64_t> overflowing_sample() const {
    return overflowing_sample_;
  }
  // What ReadEach found.
  std::span<const std::byte* const> each() const { return each_; }

  size_t capacity_bytes() const {
    return rows_memory_.capacity_bytes() + ends_memory_.capacity_bytes() +
           each_memory_.capacity_bytes() + numbers_.capacity_bytes() +
           narrow_numbers_.capacity_bytes() + gains_memory_.capacity_bytes() +
           sorter_.capacity_bytes() + long_sample_.capacity_bytes() +
           splits.capacity_bytes() + whole.capacity_bytes();
  }

  // For the caller: of the splits that it reads, and of rows of which it takes
  // some columns.
  ScratchArray<int64_t> splits;
  ScratchArray<float> whole;

 private:
  struct IdAt {
    uint64_t row;
    size_t position;
  };

  // The numbers of rows of the ids from `begin` on, rows() for those that there
  // are not; false if there was one.
  template <typename Number>
  static bool WriteNumbers(const MappedTable& table, const Ids& ids,
                           int64_t begin, std::span<Number> numbers);
  // Writes gains_ and overflowing_sample_.
  void WriteGains(convert::Combiner combiner, std::span<const float> weights,
                  std::span<const int64_t> splits);
  // Write rows_ and ends_, with gains_ if there are any; the second one where
  // there are too many rows or ids for the first.
  void WriteRows(const MappedTable& table, convert::Combiner combiner,
                 std::span<const uint32_t> numbers,
                 std::span<const int64_t> splits);
  void WriteRows(const MappedTable& table, convert::Combiner combiner,
                 std::span<const uint64_t> numbers,
                 std::span<const int64_t> splits);

  std::span<WeightedRow> rows_;
  std::span<int64_t> ends_;
  std::span<const std::byte*> each_;
  std::span<float> gains_;  // of every id, if there are weights
  std::optional<int64_t> overflowing_sample_;
  ScratchArray<WeightedRow> rows_memory_;
  ScratchArray<int64_t> ends_memory_;
  ScratchArray<const std::byte*> each_memory_;
  ScratchArray<uint64_t> numbers_;
  ScratchArray<uint32_t> narrow_numbers_;
  ScratchArray<float> gains_memory_;
  kernels::SampleSorter sorter_;
  ScratchArray<IdAt> long_sample_;
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_SAMPLE_ROWS_H_
