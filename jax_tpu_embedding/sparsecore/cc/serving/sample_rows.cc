// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/sample_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_lanes.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sample_registers.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

namespace jte::serving {
namespace {

using kernels::SampleLanes;

// Rows whose numbers, and that of the row of zeros, can be sorted in lanes.
bool FitLanes(int64_t rows) { return rows < SampleLanes::kNoNumber; }

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

template <typename Number>
WeightedRow* SampleRows::WriteLongSample(const MappedTable& table,
                                         std::span<const Number> numbers,
                                         const float* gains, float same_gain,
                                         WeightedRow* out) {
  const std::span<IdAt> sorted = long_sample_.Take(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) sorted[i] = {numbers[i], i};
  std::ranges::sort(sorted, {}, [](const IdAt& id) {
    return std::tuple(id.row, id.position);
  });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const auto [row, position] = sorted[i];
    const float gain = gains != nullptr ? gains[position] : same_gain;
    if (i > 0 && row == sorted[i - 1].row) {
      out[-1].gain += gain;
    } else {
      *out++ = {table.Row(static_cast<int64_t>(row)), gain};
    }
  }
  return out;
}

template <typename Number>
void SampleRows::WriteRows(const MappedTable& table, convert::Combiner combiner,
                           std::span<const Number> numbers,
                           std::span<const int64_t> splits) {
  constexpr int64_t kLanes = SampleLanes::kLanes;
  const int64_t num_samples = std::ssize(splits) - 1;
  const float* const gains = gains_.empty() ? nullptr : gains_.data();
  // That of the row of zeros is the largest.
  const int number_bits = std::bit_width(static_cast<uint64_t>(table.rows()));
  const auto row = [&table](uint32_t number) { return table.Row(number); };
  WeightedRow* const out = rows_memory_.Take(numbers.size()).data();
  WeightedRow* end = out;
  ends_ = ends_memory_.Take(num_samples);
  for (int64_t first = 0; first < num_samples; first += kLanes) {
    SampleLanes::Begins begins;
    std::array<float, kLanes> same_gains;
    int64_t most = 0;
    begins[0] = splits[first] - splits.front();
    for (int64_t k = 0; k < kLanes; ++k) {
      begins[k + 1] =
          splits[std::min(first + k + 1, num_samples)] - splits.front();
      const int64_t n = begins[k + 1] - begins[k];
      most = std::max(most, n);
      same_gains[k] = convert::UnweightedGain(combiner, n);
    }
    const int64_t num_lanes = std::min(kLanes, num_samples - first);
    bool are_in_lanes = false;
    if constexpr (std::is_same_v<Number, uint32_t>) {
      if (kernels::ShouldSortInRegisters(number_bits, gains != nullptr, most)) {
        std::array<uint32_t, kLanes> ends;
        const std::span<kernels::WeightedRow> sorted = sorted_memory_.Take(
            begins[kLanes] - begins[0] + kernels::kMaxIdsInRegisters);
        kernels::SortInRegisters({.numbers = numbers.data(),
                                  .begins = begins,
                                  .most_ids = most,
                                  .gains = gains,
                                  .same_gains = same_gains.data()},
                                 sorted.data(), sorted.data(), ends.data());
        const kernels::WeightedRow* next = sorted.data();
        for (int64_t k = 0; k < num_lanes; ++k) {
          for (; next < sorted.data() + ends[k]; ++next) {
            *end++ = {row(static_cast<uint32_t>(next->row)), next->gain};
          }
          ends_[first + k] = end - out;
        }
        continue;
      }
      are_in_lanes = 1 < most && most <= SampleLanes::kMaxIds;
      if (are_in_lanes && gains != nullptr) {
        lanes_.Sort(numbers.data(), begins, number_bits, gains);
      } else if (are_in_lanes) {
        lanes_.Sort(numbers.data(), begins, same_gains);
      }
    }
    for (int64_t k = 0; k < num_lanes; ++k) {
      const int64_t n = begins[k + 1] - begins[k];
      const float* const of_sample =
          gains == nullptr ? nullptr : gains + begins[k];
      if (are_in_lanes) {
        end = lanes_.Write(k, row, end);
      } else if (n == 1) {
        *end++ = {table.Row(static_cast<int64_t>(numbers[begins[k]])),
                  of_sample == nullptr ? same_gains[k] : *of_sample};
      } else {
        end = WriteLongSample(table, numbers.subspan(begins[k], n), of_sample,
                              same_gains[k], end);
      }
      ends_[first + k] = end - out;
    }
  }
  rows_ = {out, end};
}

bool SampleRows::Read(const MappedTable& table, convert::Combiner combiner,
                      const Ids& ids, std::span<const float> weights,
                      std::span<const int64_t> splits) {
  const int64_t first_id = splits.front();
  const int64_t num_ids = splits.back() - first_id;
  gains_ = {};
  if (!weights.empty()) WriteGains(combiner, weights, splits);
  if (FitLanes(table.rows())) {
    const std::span<uint32_t> numbers =
        narrow_numbers_.Take(num_ids + SampleLanes::kReadsBehind)
            .first(num_ids);
    const bool are_in_table = WriteNumbers(table, ids, first_id, numbers);
    WriteRows<uint32_t>(table, combiner, numbers, splits);
    return are_in_table;
  }
  const std::span<uint64_t> numbers = numbers_.Take(num_ids);
  const bool are_in_table = WriteNumbers(table, ids, first_id, numbers);
  WriteRows<uint64_t>(table, combiner, numbers, splits);
  return are_in_table;
}

}  // namespace jte::serving
