// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/merge_runs.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::kernels {

namespace {

using testing::ElementsAre;
using Numbers = std::vector<int32_t>;

// Runs with memory of their own. Gains number the entries of all runs.
class Runs {
 public:
  void Add(Numbers ids, int32_t first_row, int32_t first_sample) {
    Numbers samples;
    std::vector<float> gains;
    for (size_t i = 0; i < ids.size(); ++i) {
      samples.push_back(static_cast<int32_t>(i));
      gains.push_back(static_cast<float>(num_entries_++));
    }
    memory_.push_back({std::move(ids), std::move(samples), std::move(gains)});
    // Moving a vector keeps its elements where they are.
    const auto& [kept_ids, kept_samples, kept_gains] = memory_.back();
    runs_.push_back({kept_ids, kept_samples.data(), kept_gains.data(),
                     first_row, first_sample});
  }

  // A run of `size` ascending ids below `num_ids`.
  void AddRandom(int64_t size, int32_t num_ids, int32_t first_row) {
    Numbers ids(size);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % num_ids);
    std::ranges::sort(ids);
    Add(std::move(ids), first_row, 100 * static_cast<int32_t>(runs_.size()));
  }

  std::span<const Run> runs() const { return runs_; }

  // What MergeRuns of all rows is to be: entries as (row, sample, gain).
  std::vector<std::tuple<int64_t, int32_t, float>> Sorted() const {
    std::vector<std::tuple<int64_t, int32_t, float>> entries;
    for (const Run& run : runs_) {
      for (int64_t i = 0; i < run.size(); ++i) {
        entries.emplace_back(run.row(i), run.sample(i), run.gains[i]);
      }
    }
    std::ranges::stable_sort(entries, {},
                             [](const auto& entry) { return get<0>(entry); });
    return entries;
  }

 private:
  std::mt19937 random_{1};
  std::vector<std::tuple<Numbers, Numbers, std::vector<float>>> memory_;
  std::vector<Run> runs_;
  int64_t num_entries_ = 0;
};

std::vector<std::tuple<int64_t, int32_t, float>> Merged(
    const Runs& runs, const std::vector<int64_t>& cuts) {
  std::vector<std::tuple<int64_t, int32_t, float>> entries;
  MergeScratch scratch;
  for (size_t k = 0; k + 1 < cuts.size(); ++k) {
    for (const Entry& entry :
         MergeRuns(runs.runs(), cuts[k], cuts[k + 1], scratch)) {
      entries.emplace_back(entry.row, entry.sample, entry.gain);
    }
  }
  return entries;
}

TEST(IsAscendingTest, EqualRowsAscend) {
  Runs runs;
  runs.Add({}, 0, 0);
  runs.Add({7}, 0, 0);
  runs.Add({1, 1, 2, 2147483647}, 0, 0);
  EXPECT_TRUE(std::ranges::all_of(runs.runs(), IsAscending));
}

TEST(IsAscendingTest, OneSmallerRowDoesNot) {
  Runs runs;
  runs.Add({5, 4}, 0, 0);
  runs.Add({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 16}, 0,
           0);
  EXPECT_TRUE(std::ranges::none_of(runs.runs(), IsAscending));
}

TEST(MergeRunsTest, EntriesOfARowKeepTheOrderOfRuns) {
  Runs runs;
  runs.Add({1, 1, 3}, /*first_row=*/0, /*first_sample=*/0);
  runs.Add({0, 1, 1, 4}, 0, 10);
  runs.Add({1}, 0, 20);
  EXPECT_THAT(Merged(runs, {0, 5}),
              ElementsAre(std::tuple(0, 10, 3.0f), std::tuple(1, 0, 0.0f),
                          std::tuple(1, 1, 1.0f), std::tuple(1, 11, 4.0f),
                          std::tuple(1, 12, 5.0f), std::tuple(1, 20, 7.0f),
                          std::tuple(3, 2, 2.0f), std::tuple(4, 13, 6.0f)));
}

TEST(MergeRunsTest, RowsCountFromTheFirstOfTheRun) {
  Runs runs;
  runs.Add({2}, /*first_row=*/2147483640, 0);
  runs.Add({0}, /*first_row=*/10, 0);
  EXPECT_THAT(
      Merged(runs, {0, 11, int64_t{1} << 31}),
      ElementsAre(std::tuple(10, 0, 1.0f), std::tuple(2147483642, 0, 0.0f)));
}

TEST(MergeRunsTest, NoRowsHaveNoEntries) {
  Runs runs;
  runs.Add({3, 5}, 0, 0);
  MergeScratch scratch;
  EXPECT_TRUE(MergeRuns(runs.runs(), 4, 5, scratch).empty());
}

TEST(MergeRunsTest, RangesOfRandomRunsAreWhatAStableSortGives) {
  for (const int num_runs : {1, 2, 3, 4, 7, 16}) {
    for (const int32_t num_ids : {1, 10, 100000}) {
      Runs runs;
      for (int r = 0; r < num_runs; ++r) {
        runs.AddRandom(/*size=*/137 * (r * r % 5), num_ids, r % 2 * num_ids);
      }
      for (const int64_t size : {1, 50, 100000}) {
        const std::vector<int64_t> cuts =
            CutRows(runs.runs(), 2 * num_ids, size);
        EXPECT_EQ(Merged(runs, cuts), runs.Sorted())
            << num_runs << " runs of " << num_ids << " ids, cut at " << size;
      }
    }
  }
}

TEST(CutRowsTest, RangesHaveAboutAsManyEntriesAsAskedFor) {
  Runs runs;
  for (int r = 0; r < 4; ++r) runs.AddRandom(10000, 1 << 20, 0);
  const std::vector<int64_t> cuts = CutRows(runs.runs(), 1 << 20, 1000);
  ASSERT_GT(cuts.size(), 30);
  MergeScratch scratch;
  for (size_t k = 0; k + 1 < cuts.size(); ++k) {
    EXPECT_LT(MergeRuns(runs.runs(), cuts[k], cuts[k + 1], scratch).size(),
              2000);
  }
}

TEST(CutRowsTest, ARowIsNotCut) {
  Runs runs;
  runs.Add(Numbers(1000, 3), 0, 0);
  EXPECT_THAT(CutRows(runs.runs(), 10, 10), ElementsAre(0, 3, 10));
}

}  // namespace

}  // namespace jte::kernels
