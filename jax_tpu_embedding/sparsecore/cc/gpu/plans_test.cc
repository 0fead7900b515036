// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The order of entries in plans, emulated, in whatever order threads run.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/testing/emulated_calls.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::gpu {
namespace {

// Those that are beyond the batch are none, whatever their numbers are.
TEST(GroupKnownBySampleTest, SamplesBeyondTheBatchAreNone) {
  const std::vector<int32_t> rows = {4, 1, 2, 3, 0};
  const std::vector<int32_t> samples = {1, 1 << 30, 0, 3, 1};
  const std::vector<float> gains = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
  const auto groups = GroupedSamples::Of(
      KnownEntries{rows.data(), samples.data(), gains.data(), 5}, 2);
  const ConstSampleGroups found = groups.view();
  EXPECT_THAT(std::span(found.begins, 3), testing::ElementsAre(0, 1, 3));
  EXPECT_THAT(std::span(found.rows, 3), testing::ElementsAre(2, 4, 0));
  EXPECT_THAT(std::span(found.gains, 3), testing::ElementsAre(3, 1, 5));
}

TEST(GroupRowsTest, NoRowsHaveNoGroups) {
  const auto groups =
      GroupedRows::Of(RowNumbers{nullptr, nullptr, 0, 0, 5}, /*block_size=*/2);
  const GroupCounts& counts = *groups.view().counts;
  EXPECT_EQ(counts.num_rows(), 0);
  EXPECT_EQ(counts.num_long_rows, 0);
  EXPECT_EQ(counts.num_blocks, 0);
  EXPECT_FALSE(counts.flaws.any());
}

// The plan of entries that are in no order of samples, beside a stable sort.
// `num_long` of sample 2 are among `size`, of the others few are.
class LongSamplesTest : public testing::TestWithParam<unsigned> {
 protected:
  LongSamplesTest() { SeedOrder(GetParam()); }

  static std::vector<int32_t> RandomSamples(int64_t size, int64_t num_samples,
                                            int64_t num_long) {
    std::mt19937_64 random(7);
    std::vector<int32_t> samples(size, 2);
    for (int64_t i = num_long; i < size; ++i) {
      samples[i] = static_cast<int32_t>(random() % num_samples);
    }
    std::ranges::shuffle(samples, random);
    return samples;
  }

  // Entry i has row i.
  static void ExpectInOrder(const std::vector<int32_t>& samples,
                            const ConstSampleGroups& groups) {
    std::vector<int32_t> expected(samples.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::ranges::stable_sort(expected, {},
                             [&samples](int32_t i) { return samples[i]; });
    EXPECT_TRUE(
        std::ranges::equal(std::span(groups.rows, samples.size()), expected));
  }
};

TEST_P(LongSamplesTest, AreGroupedInTheOrderOfTheBuffers) {
  constexpr int64_t kSize = 8000;
  constexpr int64_t kSamples = 500;
  std::vector<int32_t> rows(kSize);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<int32_t> row_pointers(8, kSize);
  const std::vector<float> gains(kSize);
  for (const int64_t num_long : {1000, 1024, 1025, 2048, 5000}) {
    SCOPED_TRACE(num_long);
    const auto samples = RandomSamples(kSize, kSamples, num_long);
    const Batch batch({row_pointers, rows, samples, gains},
                      {.num_sc_per_device = 1,
                       .rows_per_shard = kSize,
                       .batch_size_per_sc = kSamples,
                       .enable_minibatching = false,
                       .num_minibatches = 1});
    ExpectInOrder(samples, GroupedSamples::Of(batch).view());
    ExpectInOrder(samples,
                  GroupedSamples::Of(KnownEntries{rows.data(), samples.data(),
                                                  gains.data(), kSize},
                                     kSamples)
                      .view());
  }
}

// In a batch of so many cells runs are merged twice.
TEST_P(LongSamplesTest, AreGroupedInTheOrderOfALargeBatch) {
  constexpr int64_t kSize = 1024 * 1024 + 1;
  constexpr int64_t kSamples = 100'000;
  std::vector<int32_t> rows(kSize);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<float> gains(kSize);
  const auto samples = RandomSamples(kSize, kSamples, 3000);
  ExpectInOrder(samples,
                GroupedSamples::Of(KnownEntries{rows.data(), samples.data(),
                                                gains.data(), kSize},
                                   kSamples)
                    .view());
}

// With so many of a sample on average, and two bytes of a sample's number.
TEST_P(LongSamplesTest, AreSortedIfAllAreLong) {
  constexpr int64_t kSamples = 256;
  constexpr int64_t kSize = 1024 * kSamples + 1;
  std::vector<int32_t> rows(kSize);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<float> gains(kSize);
  const auto samples = RandomSamples(kSize, kSamples, 3000);
  ExpectInOrder(samples,
                GroupedSamples::Of(KnownEntries{rows.data(), samples.data(),
                                                gains.data(), kSize},
                                   kSamples)
                    .view());
}

INSTANTIATE_TEST_SUITE_P(Orders, LongSamplesTest, testing::Values(0, 1, 2));

// Few cells have plans of their own, which are those of the same entries in
// buffers with more cells.
class FewCellsTest : public testing::TestWithParam<unsigned> {
 protected:
  static constexpr int64_t kRows = 50;
  static constexpr int64_t kSamples = 20;

  FewCellsTest() : random_(GetParam()) {
    SeedOrder(GetParam());
    std::vector<int64_t> keys(256);
    for (auto& key : keys) key = random_() % (kRows * kSamples);
    std::ranges::sort(keys);
    for (const int64_t key : keys) {
      rows_.push_back(static_cast<int32_t>(key / kSamples));
      samples_.push_back(static_cast<int32_t>(key % kSamples));
      gains_.push_back(static_cast<float>(random_() % 100));
    }
  }

  // Plans of the first `num_entries` in buffers of 256 cells, and of 264.
  void ExpectSamePlans(int32_t num_entries);

  std::mt19937 random_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> samples_;
  std::vector<float> gains_;
};

void FewCellsTest::ExpectSamePlans(int32_t num_entries) {
  SCOPED_TRACE(num_entries);
  std::vector<int32_t> row_pointers(8, (num_entries + 7) / 8 * 8);
  row_pointers[0] = num_entries;
  const kernels::CooGeometry geometry = {.num_sc_per_device = 1,
                                         .rows_per_shard = kRows,
                                         .batch_size_per_sc = kSamples,
                                         .enable_minibatching = false,
                                         .num_minibatches = 1};
  const Batch few({row_pointers, rows_, samples_, gains_}, geometry);
  auto more_rows = rows_;
  auto more_samples = samples_;
  auto more_gains = gains_;
  more_rows.resize(264);
  more_samples.resize(264);
  more_gains.resize(264);
  const Batch more({row_pointers, more_rows, more_samples, more_gains},
                   geometry);
  const auto span = [](const auto* begin, int64_t size) {
    return testing::ElementsAreArray(std::span(begin, size));
  };
  const auto flaws = [](const Flaws& of) {
    return std::pair(of.partitions, of.entries);
  };
  const LaunchCounts before = Launches();
  const auto samples = GroupedSamples::Of(few);
  const auto rows = GroupedRows::Of(few, /*block_size=*/512);
  EXPECT_EQ(Launches() - before, (LaunchCounts{2, 0, 0}));

  const auto samples_of_more = GroupedSamples::Of(more);
  const ConstSampleGroups expected = samples_of_more.view();
  const ConstSampleGroups found = samples.view();
  EXPECT_EQ(flaws(*found.flaws), flaws(*expected.flaws));
  EXPECT_THAT(std::span(found.begins, kSamples + 1),
              span(expected.begins, kSamples + 1));
  EXPECT_THAT(std::span(found.rows, num_entries),
              span(expected.rows, num_entries));
  EXPECT_THAT(std::span(found.gains, num_entries),
              span(expected.gains, num_entries));

  const auto rows_of_more = GroupedRows::Of(more, /*block_size=*/512);
  const ConstRowGroups expected_rows = rows_of_more.view();
  const ConstRowGroups found_rows = rows.view();
  const int32_t num_starts = expected_rows.counts->num_starts;
  EXPECT_EQ(found_rows.counts->num_starts, num_starts);
  EXPECT_EQ(found_rows.counts->num_long_rows, 0);
  EXPECT_EQ(found_rows.counts->num_blocks, 0);
  EXPECT_EQ(flaws(found_rows.counts->flaws),
            flaws(expected_rows.counts->flaws));
  EXPECT_THAT(std::span(found_rows.starts, num_starts),
              span(expected_rows.starts, num_starts));
  EXPECT_THAT(std::span(found_rows.rows, 256), span(expected_rows.rows, 256));
  EXPECT_THAT(std::span(found_rows.samples, 256),
              span(expected_rows.samples, 256));
}

TEST_P(FewCellsTest, HavePlansOfMore) {
  for (const int32_t num_entries : {0, 1, 2, 7, 8, 100, 255, 256}) {
    ExpectSamePlans(num_entries);
  }
}

// Of a number that is out of range, or a row out of order, behind the entries
// or among them.
TEST_P(FewCellsTest, HaveFlawsOfMore) {
  const auto rows = rows_;
  const auto samples = samples_;
  for (const int32_t wrong : {-1, 1 << 30, 0}) {
    for (const int i : {100, 200}) {
      rows_ = rows;
      rows_[i] = wrong;
      ExpectSamePlans(200);
      rows_ = rows;
      samples_[i] = wrong;
      ExpectSamePlans(200);
      samples_ = samples;
    }
  }
}

TEST_P(FewCellsTest, NoteWrongRowPointers) {
  const std::vector<int32_t> right(8, 256);
  for (const int32_t wrong : {-1, 257, 1 << 30}) {
    for (const int i : {0, 5}) {
      if (i > 0 && wrong < 0) continue;  // ends before that of another device
      auto row_pointers = right;
      row_pointers[i] = wrong;
      const Batch batch({row_pointers, rows_, samples_, gains_},
                        {.num_sc_per_device = 1,
                         .rows_per_shard = kRows,
                         .batch_size_per_sc = kSamples,
                         .enable_minibatching = false,
                         .num_minibatches = 1});
      const auto groups = GroupedSamples::Of(batch);
      EXPECT_EQ(groups.view().flaws->partitions, 1);
      EXPECT_EQ(groups.view().begins[kSamples], 256);  // all are entries
      const auto of_rows = GroupedRows::Of(batch, /*block_size=*/512);
      EXPECT_EQ(of_rows.view().counts->flaws.partitions, 1);
      EXPECT_EQ(of_rows.view().starts[of_rows.view().counts->num_rows()], 256);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, FewCellsTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace jte::gpu
