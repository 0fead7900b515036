// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/sample_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/sort_lanes.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

namespace jte::serving {
namespace {

using kernels::kLanes;

// What lanes of the network are filled up with.
constexpr uint32_t kNoNumber = ~uint32_t{0};
// With weights a number is sorted with its position, in a signed word.
constexpr int kPositionBits = 7;
static_assert(SampleRows::kMaxNetworkIds <= 1 << kPositionBits);

// Rows whose numbers, and that of the row of zeros, fit the network.
bool FitNetwork(int64_t rows) { return rows < kNoNumber; }

}  // namespace

// n ids as numbers of rows; returns the largest, of which a negative id is one.
template <typename Id>
JTE_VECTOR_CLONES uint64_t WriteNumbersOf(const Id* ids, int64_t n,
                                          uint64_t rows,
                                          uint64_t* __restrict numbers) {
  uint64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    largest = id > largest ? id : largest;
    numbers[i] = id < rows ? id : rows;
  }
  return largest;
}

bool SampleRows::WriteNumbers(const MappedTable& table, const Ids& ids,
                              int64_t begin, int64_t n) {
  numbers_ = numbers_memory_.Take(n);
  const auto rows = static_cast<uint64_t>(table.rows());
  return std::visit(
      [this, begin, n, rows](auto span) {
        return n == 0 || WriteNumbersOf(span.data() + begin, n, rows,
                                        numbers_.data()) < rows;
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
  const bool are_in_table = WriteNumbers(table, ids, 0, n);
  each_ = each_memory_.Take(n);
  for (int64_t i = 0; i < n; ++i) {
    each_[i] = table.Row(static_cast<int64_t>(numbers_[i]));
  }
  return are_in_table;
}

bool SampleRows::Read(const MappedTable& table, convert::Combiner combiner,
                      const Ids& ids, std::span<const float> weights,
                      std::span<const int64_t> splits) {
  const int64_t first_id = splits.front();
  const int64_t num_samples = std::ssize(splits) - 1;
  const int64_t num_ids = splits.back() - first_id;
  const bool are_in_table = WriteNumbers(table, ids, first_id, num_ids);
  const bool has_weights = !weights.empty();
  if (has_weights) WriteGains(combiner, weights, splits);

  const uint64_t* const numbers = numbers_.data();
  const float* const gains = gains_.data();
  WeightedRow* const out = rows_memory_.Take(num_ids).data();
  ends_ = ends_memory_.Take(num_samples);
  int64_t num_rows = 0;

  // Rows of a sample from its n sorted ids: at(i) is the number of the i-th,
  // gain(i) its gain.
  const auto merge = [out, &table, &num_rows](int64_t n, const auto& at,
                                              const auto& gain) {
    for (int64_t i = 0; i < n; ++i) {
      if (i > 0 && at(i) == at(i - 1)) {
        out[num_rows - 1].gain += gain(i);
      } else {
        out[num_rows++] = {table.Row(static_cast<int64_t>(at(i))), gain(i)};
      }
    }
  };

  const auto read_long_sample = [this, numbers, gains, has_weights, combiner,
                                 &merge](int64_t begin, int64_t n) {
    const std::span<IdAt> sorted = long_sample_.Take(n);
    for (int64_t i = 0; i < n; ++i) sorted[i] = {numbers[begin + i], begin + i};
    std::ranges::sort(sorted, {}, [](const IdAt& id) {
      return std::tuple(id.row, id.position);
    });
    const float same = convert::UnweightedGain(combiner, n);
    merge(
        n, [sorted](int64_t i) { return sorted[i].row; },
        [sorted, gains, has_weights, same](int64_t i) {
          return has_weights ? gains[sorted[i].position] : same;
        });
  };

  // Sorts the samples from `first` on, one in each lane, by value(position in
  // all ids, position in the sample).
  const auto sort_lanes = [this, splits, first_id](
                              int64_t first, int64_t num_lanes, int64_t most,
                              auto padding, const auto& value) {
    using Value = decltype(padding);
    auto* const values =
        reinterpret_cast<Value*>(lanes_.Take(kLanes * most).data());
    for (int64_t k = 0; k < kLanes; ++k) {
      const int64_t begin = k < num_lanes ? splits[first + k] - first_id : 0;
      const int64_t n =
          k < num_lanes ? splits[first + k + 1] - splits[first + k] : 0;
      for (int64_t i = 0; i < n; ++i) {
        values[i * kLanes + k] = value(begin + i, i);
      }
      for (int64_t i = n; i < most; ++i) values[i * kLanes + k] = padding;
    }
    kernels::SortLanes(values, most);
    return values;
  };

  const bool fits_network = FitNetwork(table.rows());
  for (int64_t first = 0; first < num_samples; first += kLanes) {
    const int64_t num_lanes = std::min(kLanes, num_samples - first);
    int64_t most = 0;
    for (int64_t s = first; s < first + num_lanes; ++s) {
      most = std::max(most, splits[s + 1] - splits[s]);
    }
    const uint32_t* by_number = nullptr;
    const int64_t* by_position = nullptr;
    uint32_t repeats[kLanes] = {};
    if (most > kMaxNetworkIds || !fits_network) {
      // One by one, below.
    } else if (most > 1 && has_weights) {
      by_position = sort_lanes(
          first, num_lanes, most, std::numeric_limits<int64_t>::max(),
          [numbers](int64_t id, int64_t i) {
            return static_cast<int64_t>(numbers[id] << kPositionBits) | i;
          });
    } else if (most > 1) {
      by_number = sort_lanes(first, num_lanes, most, kNoNumber,
                             [numbers](int64_t id, int64_t) {
                               return static_cast<uint32_t>(numbers[id]);
                             });
      kernels::FindRepeats(by_number, most, repeats);
    }
    for (int64_t k = 0; k < num_lanes; ++k) {
      const int64_t begin = splits[first + k] - first_id;
      const int64_t n = splits[first + k + 1] - splits[first + k];
      const float same = convert::UnweightedGain(combiner, n);
      if (by_position != nullptr) {
        merge(
            n,
            [by_position, k](int64_t i) {
              return by_position[i * kLanes + k] >> kPositionBits;
            },
            [by_position, gains, begin, k](int64_t i) {
              return gains[begin + (by_position[i * kLanes + k] &
                                    ((1 << kPositionBits) - 1))];
            });
      } else if (by_number != nullptr && repeats[k] != 0) {
        merge(
            n, [by_number, k](int64_t i) { return by_number[i * kLanes + k]; },
            [same](int64_t) { return same; });
      } else if (by_number != nullptr) {
        for (int64_t i = 0; i < n; ++i) {
          out[num_rows++] = {table.Row(by_number[i * kLanes + k]), same};
        }
      } else if (n == 1) {
        out[num_rows++] = {table.Row(static_cast<int64_t>(numbers[begin])),
                           has_weights ? gains[begin] : same};
      } else {
        read_long_sample(begin, n);
      }
      ends_[first + k] = num_rows;
    }
  }
  rows_ = {out, static_cast<size_t>(num_rows)};
  return are_in_table;
}

}  // namespace jte::serving
