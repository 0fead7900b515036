// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/sample_rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/policies.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_sorter.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

namespace jte::serving {
namespace {

using kernels::SampleSorter;

// The numbers of rows, and that of the row of zeros, and the count of ids.
bool FitSorter(int64_t rows, int64_t num_ids) {
  return rows < SampleSorter::kNoNumber &&
         num_ids <= kernels::kMaxSortedEntries;
}

}  // namespace

// n ids as numbers of rows; returns the largest, of which a negative id is one.
template <typename Id, typename Number>
JTE_VECTOR_CLONES uint64_t WriteNumbersOf(const Id* ids, int64_t n,
                                          uint64_t rows,
                                          Number* __restrict numbers) {
  uint64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    largest = id > largest ? id : largest;
    numbers[i] = static_cast<Number>(id < rows ? id : rows);
  }
  return largest;
}

template <typename Number>
bool SampleRows::WriteNumbers(const MappedTable& table, const Ids& ids,
                              int64_t begin, std::span<Number> numbers) {
  const auto rows = static_cast<uint64_t>(table.rows());
  return std::visit(
      [begin, rows, numbers](auto span) {
        return numbers.empty() ||
               WriteNumbersOf(span.data() + begin, std::ssize(numbers), rows,
                              numbers.data()) < rows;
      },
      ids);
}

void SampleRows::WriteGains(convert::Combiner combiner,
                            std::span<const float> weights,
                            std::span<const int64_t> splits) {
  const int64_t first = splits.front();
  gains_ = gains_memory_.Take(splits.back() - first);
  for (size_t s = 0; s + 1 < splits.size(); ++s) {
    const int64_t n = splits[s + 1] - splits[s];
    const std::span<const float> of_sample = weights.subspan(splits[s], n);
    const float divisor = convert::WeightDivisor(combiner, of_sample);
    if (combiner != convert::Combiner::kSum && !overflowing_sample_ &&
        !convert::IsFinite(divisor)) {
      overflowing_sample_ = static_cast<int64_t>(s);
    }
    for (int64_t i = 0; i < n; ++i) {
      gains_[splits[s] - first + i] =
          combiner == convert::Combiner::kSum
              ? of_sample[i]
              : convert::WeightedGain(of_sample[i], divisor);
    }
  }
}

bool SampleRows::ReadEach(const MappedTable& table, const Ids& ids) {
  const int64_t n = NumIds(ids);
  const std::span<uint64_t> numbers = numbers_.Take(n);
  const bool are_in_table = WriteNumbers(table, ids, 0, numbers);
  each_ = each_memory_.Take(n);
  for (int64_t i = 0; i < n; ++i) {
    each_[i] = table.Row(static_cast<int64_t>(numbers[i]));
  }
  return are_in_table;
}

void SampleRows::WriteRows(const MappedTable& table, convert::Combiner combiner,
                           std::span<const uint32_t> numbers,
                           std::span<const int64_t> splits) {
  const auto num_rows = static_cast<uint64_t>(table.rows());
  sorter_.Sort({.numbers = numbers.data(),
                // The number of the row of zeros is the largest.
                .number_bits = static_cast<int>(std::bit_width(num_rows)),
                .gains = gains_.empty() ? nullptr : gains_.data(),
                .combiner = combiner},
               std::ssize(splits) - 1,
               [splits](int64_t s) { return splits[s] - splits.front(); });
  rows_ = rows_memory_.Take(sorter_.entries().size());
  WeightedRow* out = rows_.data();
  for (const auto [number, gain] : sorter_.entries()) {
    *out++ = {table.Row(static_cast<uint32_t>(number)), gain};
  }
  ends_ = ends_memory_.Take(sorter_.ends().size());
  std::ranges::copy(sorter_.ends(), ends_.begin());
}

void SampleRows::WriteRows(const MappedTable& table, convert::Combiner combiner,
                           std::span<const uint64_t> numbers,
                           std::span<const int64_t> splits) {
  WeightedRow* const out = rows_memory_.Take(numbers.size()).data();
  WeightedRow* end = out;
  ends_ = ends_memory_.Take(splits.size() - 1);
  for (size_t s = 0; s + 1 < splits.size(); ++s) {
    const int64_t begin = splits[s] - splits.front();
    const std::span<IdAt> sorted = long_sample_.Take(splits[s + 1] - splits[s]);
    for (size_t i = 0; i < sorted.size(); ++i) {
      sorted[i] = {numbers[begin + i], i};
    }
    std::ranges::sort(sorted, {}, [](const IdAt& id) {
      return std::tuple(id.row, id.position);
    });
    const float same_gain = convert::UnweightedGain(combiner, sorted.size());
    for (size_t i = 0; i < sorted.size(); ++i) {
      const auto [row, position] = sorted[i];
      const float gain = gains_.empty() ? same_gain : gains_[begin + position];
      if (i > 0 && row == sorted[i - 1].row) {
        end[-1].gain += gain;
      } else {
        *end++ = {table.Row(static_cast<int64_t>(row)), gain};
      }
    }
    ends_[s] = end - out;
  }
  rows_ = {out, end};
}

bool SampleRows::Read(const MappedTable& table, convert::Combiner combiner,
                      const Ids& ids, std::span<const float> weights,
                      std::span<const int64_t> splits) {
  const int64_t first_id = splits.front();
  const int64_t num_ids = splits.back() - first_id;
  gains_ = {};
  overflowing_sample_.reset();
  if (!weights.empty()) WriteGains(combiner, weights, splits);
  if (FitSorter(table.rows(), num_ids)) {
    const std::span<uint32_t> numbers =
        narrow_numbers_.Take(num_ids + SampleSorter::kReadsBehind)
            .first(num_ids);
    const bool are_in_table = WriteNumbers(table, ids, first_id, numbers);
    WriteRows(table, combiner, numbers, splits);
    return are_in_table;
  }
  const std::span<uint64_t> numbers = numbers_.Take(num_ids);
  const bool are_in_table = WriteNumbers(table, ids, first_id, numbers);
  WriteRows(table, combiner, numbers, splits);
  return are_in_table;
}

}  // namespace jte::serving
