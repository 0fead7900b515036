// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"

namespace jte::kernels {

namespace {

constexpr int64_t kBatchSizePerSc = 50;

// Rows of a table, in ascending order, and what is written for them.
struct Sums {
  std::vector<int32_t> rows;
  std::vector<float> gradients;

  bool operator==(const Sums&) const = default;
};

// (columns, devices, source SparseCores of each).
class SumRowsTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  // Rows with 1 to 5 entries, one with a block of some sources, and two with
  // more, one of which is the last.
  SumRowsTest() {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    const int64_t batch_size = num_sources_ * kBatchSizePerSc;
    const int bits = RowBits(num_devices_, batch_size);
    for (int32_t row = 0; row < 100; ++row) {
      const int64_t first = std::ssize(entries_);
      const int64_t size = row == 30   ? kTermsPerBlock
                           : row == 31 ? kTermsPerBlock + 1
                           : row == 99 ? 12 * kTermsPerBlock + 7
                                       : 1 + random() % 5;
      for (int64_t i = 0; i < size; ++i) {
        const int64_t device = random() % num_devices_;
        const int64_t sample = random() % batch_size;
        entries_.push_back(
            {.row = 7 * row,
             .sample = static_cast<int32_t>((device << bits) + sample),
             .gain = uniform(random)});
      }
      std::ranges::sort(entries_.begin() + first, entries_.end(), {},
                        &Entry::sample);
    }
    for (int64_t device = 0; device < num_devices_; ++device) {
      auto& rows = arrays_.emplace_back(batch_size * dim_);
      for (float& value : rows) value = uniform(random);
      pointers_.push_back(rows.data());
    }
  }

  ActivationGradient Gradient() const {
    return MakeActivationGradient(pointers_, num_sources_, kBatchSizePerSc,
                                  dim_);
  }

  // The sums in the documented order, one entry and column after the other.
  Sums Expected() const {
    const ActivationGradient gradient = Gradient();
    const auto source = [&gradient](const Entry& entry) {
      const int64_t device = entry.sample >> gradient.sample_bits;
      const int64_t sample = entry.sample - (device << gradient.sample_bits);
      return device * 1000 + sample / kBatchSizePerSc;
    };
    Sums sums;
    for (auto i = entries_.begin(); i != entries_.end();) {
      const auto end = std::find_if(i, entries_.end(), [i](const Entry& entry) {
        return entry.row != i->row;
      });
      sums.rows.push_back(i->row);
      for (int64_t d = 0; d < dim_; ++d) {
        float total = 0.0f;
        for (auto k = i; k != end;) {
          float of_source = 0.0f;
          float of_block = 0.0f;
          int64_t place = 0;
          const int64_t number = source(*k);
          for (; k != end && source(*k) == number; ++k) {
            if (place++ % kTermsPerBlock == 0) {
              of_source += std::exchange(of_block, 0.0f);
            }
            of_block += k->gain * gradient.rows[k->sample][d];
          }
          total += of_source + of_block;
        }
        sums.gradients.push_back(total);
      }
      i = end;
    }
    return sums;
  }

  // By calls for at most `max_rows` rows.
  template <typename Order>
  Sums Actual(const Order& order, int64_t max_rows) const {
    Sums sums;
    const int64_t num_entries = std::ssize(entries_);
    std::vector<int32_t> rows(max_rows);
    std::vector<float> gradients(max_rows * dim_);
    for (int64_t begin = 0; begin < num_entries;) {
      const SummedRows summed =
          SumRows(order, begin, num_entries, Gradient(), max_rows, rows.data(),
                  gradients.data());
      EXPECT_GT(summed.end, begin);
      if (summed.end <= begin) return sums;
      sums.rows.insert(sums.rows.end(), rows.begin(),
                       rows.begin() + summed.num_rows);
      sums.gradients.insert(sums.gradients.end(), gradients.begin(),
                            gradients.begin() + summed.num_rows * dim_);
      begin = summed.end;
    }
    return sums;
  }

  const int64_t dim_ = std::get<0>(GetParam());
  const int64_t num_devices_ = std::get<1>(GetParam());
  const int64_t num_sources_ = std::get<2>(GetParam());
  std::vector<Entry> entries_;
  std::vector<std::vector<float>> arrays_;
  std::vector<const float*> pointers_;
};

TEST_P(SumRowsTest, AddsUpSourcesInTheOrderOfEntries) {
  const Sums expected = Expected();
  std::vector<int32_t> ids;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  for (const Entry& entry : entries_) {
    ids.push_back(entry.row);
    samples.push_back(entry.sample);
    gains.push_back(entry.gain);
  }
  for (const int64_t max_rows : {1, 3, 100, 1000}) {
    EXPECT_EQ(Actual(SortedOrder{entries_.data()}, max_rows), expected);
    EXPECT_EQ(Actual(PartitionOrder{ids.data(), samples.data(), gains.data()},
                     max_rows),
              expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SumRowsTest,
    testing::Combine(testing::Values(1, 7, 8, 24, 64, 123, 200),
                     testing::Values(1, 3), testing::Values(1, 4)));

// What is not a number, or has no end, stays in its row.
TEST(SumRowsTest, RowsDoNotMix) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {kInfinity, 1, kNaN, 2};
  const float* array = values.data();
  for (const int64_t num_sources : {1, 2}) {
    const ActivationGradient gradient = MakeActivationGradient(
        std::span(&array, 1), num_sources, 4 / num_sources, /*dim=*/1);
    const std::vector<Entry> entries = {
        {0, 0, 1}, {1, 1, 1}, {2, 2, 1}, {3, 1, 1}, {3, 3, 1}};
    std::vector<int32_t> rows(4);
    std::vector<float> sums(4);
    const SummedRows summed = SumRows(SortedOrder{entries.data()}, 0, 5,
                                      gradient, 4, rows.data(), sums.data());
    EXPECT_EQ(summed.num_rows, 4);
    EXPECT_EQ(sums[0], kInfinity);
    EXPECT_EQ(sums[1], 1);
    EXPECT_NE(sums[2], sums[2]);
    EXPECT_EQ(sums[3], 3);
  }
}

}  // namespace

}  // namespace jte::kernels
