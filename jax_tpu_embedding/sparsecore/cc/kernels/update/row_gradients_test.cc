// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::kernels {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Results, at first with values that none may keep.
struct Gradients {
  Gradients(int64_t num_rows, int64_t dim)
      : rows(num_rows, -9), values(num_rows * dim, NAN) {}

  SparseRows results() { return {rows, values}; }
  bool operator==(const Gradients&) const = default;

  std::vector<int32_t> rows;
  std::vector<float> values;
};

std::vector<float> RandomValues(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(size);
  std::ranges::generate(values, [&] { return uniform(random); });
  return values;
}

// Row -> gradient, padded: one row after the other.
Gradients InOrder(const std::map<int32_t, std::vector<float>>& sums,
                  int64_t num_rows, int64_t dim) {
  Gradients expected(num_rows, dim);
  std::ranges::fill(expected.rows, kPaddingId);
  std::ranges::fill(expected.values, 0.0f);
  int64_t place = 0;
  for (const auto& [row, sum] : sums) {
    expected.rows[place] = row;
    std::ranges::copy(sum, expected.values.begin() + place * dim);
    ++place;
  }
  return expected;
}

// In the order that an update promises: the entries of a source in blocks, then
// blocks, then sources.
Gradients ExpectedGradients(const RandomCoo& coo,
                            const std::vector<float>& gradient, int64_t dim,
                            int64_t num_rows) {
  // Row -> source -> sums of blocks.
  using Blocks = std::vector<std::vector<float>>;
  std::map<int32_t, std::map<int64_t, Blocks>> parts;
  std::map<std::pair<int32_t, int64_t>, int64_t> num_terms;
  for (const Entry& entry : coo.entries) {
    const int64_t source = entry.sample / coo.geometry.batch_size_per_sc;
    Blocks& blocks = parts[entry.row][source];
    if (num_terms[{entry.row, source}]++ % kTermsPerBlock == 0) {
      blocks.emplace_back(dim);
    }
    std::vector<float>& part = blocks.back();
    for (int64_t d = 0; d < dim; ++d) {
      part[d] += entry.gain * gradient[entry.sample * dim + d];
    }
  }
  std::map<int32_t, std::vector<float>> sums;
  for (const auto& [row, by_source] : parts) {
    std::vector<float>& sum = sums[row];
    sum.resize(dim);
    for (const auto& [source, blocks] : by_source) {
      for (int64_t d = 0; d < dim; ++d) {
        float of_source = 0.0f;
        for (const std::vector<float>& block : blocks) of_source += block[d];
        sum[d] += of_source;
      }
    }
  }
  return InOrder(sums, num_rows, dim);
}

// (S, D, minibatches; 0: without minibatching).
class GradientsOfRowsTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(GradientsOfRowsTest, AreTheSumsOfEachRowForAnyNumberOfThreads) {
  const auto [num_scs, dim, num_minibatches] = GetParam();
  const RandomCoo coo =
      MakeRandomCoo({.num_sc_per_device = num_scs,
                     .rows_per_shard = 3000,
                     .batch_size_per_sc = 1200,
                     .enable_minibatching = num_minibatches > 0,
                     .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
                    /*ids_per_sample=*/8, /*seed=*/4);
  const std::vector<float> gradient = RandomValues(coo.num_samples() * dim, 1);
  const int64_t num_rows = coo.num_rows();
  const Gradients expected = ExpectedGradients(coo, gradient, dim, num_rows);
  ASSERT_EQ(expected.rows.back(), kPaddingId);
  for (int num_threads : {1, 2, 5}) {
    Gradients actual(num_rows, dim);
    ThreadExecutor executor(num_threads);
    const auto done = GradientsOfRows(coo.buffers(), coo.geometry, gradient,
                                      dim, actual.results(), executor);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GradientsOfRowsTest,
                         testing::Combine(testing::Values(1, 2, 9),
                                          testing::Values(1, 8, 72),
                                          testing::Values(0, 1, 3)));

// Eight of its rows have a thousand entries or more, in a gradient that is
// larger than a cache: what HotRowsPay asks for.
TEST(GradientsOfRowsTest, OfHotRowsAndTheirNeighbours) {
  constexpr int64_t kDim = 40;
  const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 1,
                                       .rows_per_shard = 3000,
                                       .batch_size_per_sc = 8192,
                                       .enable_minibatching = false,
                                       .num_minibatches = 1},
                                      /*ids_per_sample=*/2, /*seed=*/4);
  const std::vector<float> gradient = RandomValues(coo.num_samples() * kDim, 1);
  const Gradients expected = ExpectedGradients(coo, gradient, kDim, 3000);
  for (int num_threads : {1, 3, 20}) {
    Gradients actual(3000, kDim);
    ThreadExecutor executor(num_threads);
    ASSERT_TRUE(GradientsOfRows(coo.buffers(), coo.geometry, gradient, kDim,
                                actual.results(), executor));
    EXPECT_EQ(actual, expected) << num_threads << " threads";
  }
}

// One core, three rows of one column; row 1 has gradient 2 * 0.5 + 4 * 0.25
// = 2, and row 2 has 4 * 0.5 = 2.
RandomCoo SmallCoo() {
  return {.geometry = {.num_sc_per_device = 1,
                       .rows_per_shard = 3,
                       .batch_size_per_sc = 2,
                       .enable_minibatching = false,
                       .num_minibatches = 1},
          .row_pointers = {3, 8, 8, 8, 8, 8, 8, 8},
          .embedding_ids = {1, 1, 2, -1, -1, -1, -1, -1},
          .sample_ids = {0, 1, 1, -1, -1, -1, -1, -1},
          .gains = {0.5f, 0.25f, 0.5f, NAN, NAN, NAN, NAN, NAN},
          .entries = {}};
}

Result<void> RunSmall(const RandomCoo& coo, Gradients& gradients) {
  InlineExecutor executor;
  return GradientsOfRows(coo.buffers(), coo.geometry,
                         std::vector<float>{2.0f, 4.0f}, 1, gradients.results(),
                         executor);
}

TEST(GradientsOfRowsTest, ByHand) {
  Gradients gradients(3, 1);
  ASSERT_TRUE(RunSmall(SmallCoo(), gradients));
  EXPECT_THAT(gradients.rows, ElementsAre(1, 2, kPaddingId));
  EXPECT_THAT(gradients.values, ElementsAre(2.0f, 2.0f, 0.0f));
}

TEST(GradientsOfRowsTest, OfNoEntriesArePadding) {
  RandomCoo coo = SmallCoo();
  std::ranges::fill(coo.row_pointers, 0);
  Gradients gradients(2, 1);
  ASSERT_TRUE(RunSmall(coo, gradients));
  EXPECT_THAT(gradients.rows, ElementsAre(kPaddingId, kPaddingId));
  EXPECT_THAT(gradients.values, ElementsAre(0.0f, 0.0f));
}

TEST(GradientsOfRowsTest, OfARowWhoseEntriesAreApart) {
  RandomCoo coo = SmallCoo();
  std::ranges::copy(std::vector<int32_t>{1, 2, 1}, coo.embedding_ids.begin());
  std::ranges::copy(std::vector<int32_t>{0, 1, 1}, coo.sample_ids.begin());
  std::ranges::copy(std::vector<float>{0.5f, 0.5f, 0.25f}, coo.gains.begin());
  Gradients gradients(2, 1);
  ASSERT_TRUE(RunSmall(coo, gradients));
  EXPECT_THAT(gradients.rows, ElementsAre(1, 2));
  EXPECT_THAT(gradients.values, ElementsAre(2.0f, 2.0f));
}

TEST(GradientsOfRowsTest, RefuseWhatDoesNotFitAndWriteNothing) {
  RandomCoo bad_pointer = SmallCoo();
  bad_pointer.row_pointers[0] = 9;
  RandomCoo bad_id = SmallCoo();
  bad_id.embedding_ids[2] = 3;
  RandomCoo bad_sample = SmallCoo();
  bad_sample.sample_ids[1] = 2;
  struct Case {
    RandomCoo coo;
    int64_t room;
    std::string_view message;  // empty: valid
  };
  for (const Case& bad :
       std::vector<Case>{{SmallCoo(), 2, ""},
                         {SmallCoo(), 1, "2 distinct rows, and room for"},
                         {bad_pointer, 2, "row_pointers[0] is 9"},
                         {bad_id, 2, "embedding_ids[2] is 3"},
                         {bad_sample, 2, "sample_ids[1] is 2"}}) {
    Gradients gradients(bad.room, 1);
    const auto done = RunSmall(bad.coo, gradients);
    if (bad.message.empty()) {
      EXPECT_TRUE(done);
      continue;
    }
    ASSERT_FALSE(done) << bad.message;
    EXPECT_THAT(done.error().message, HasSubstr(bad.message));
    EXPECT_THAT(gradients.rows, testing::Each(-9));
    EXPECT_THAT(gradients.values, testing::Each(testing::IsNan()));
  }
}

TEST(SumOfRowsTest, AddsInTheOrderOfTermsForAnyNumberOfThreads) {
  constexpr int64_t kDim = 9;
  std::mt19937_64 random(2);
  // Terms of different lengths, one of them empty, with rows in any order,
  // which repeat; some are padding.
  std::vector<std::vector<int32_t>> rows;
  std::vector<std::vector<float>> values;
  for (const int64_t size : {9000, 0, 1, 5000}) {
    std::vector<int32_t>& of_term = rows.emplace_back(size);
    values.push_back(RandomValues(size * kDim, size));
    for (int64_t i = 0; i < size; ++i) {
      of_term[i] = static_cast<int32_t>(random() % 6000) - 1000;
      if (of_term[i] % 7 != 0) continue;
      of_term[i] = kPaddingId;
      values.back()[i * kDim] = NAN;
    }
  }
  std::vector<ConstSparseRows> terms;
  std::map<int32_t, std::vector<float>> sums;
  for (size_t k = 0; k < rows.size(); ++k) {
    terms.push_back({rows[k], values[k]});
    for (size_t i = 0; i < rows[k].size(); ++i) {
      if (rows[k][i] == kPaddingId) continue;
      std::vector<float>& sum = sums[rows[k][i]];
      sum.resize(kDim);
      for (int64_t d = 0; d < kDim; ++d) sum[d] += values[k][i * kDim + d];
    }
  }
  ASSERT_LT(sums.begin()->first, 0);  // numbers that are no rows come through
  const Gradients expected = InOrder(sums, 14001, kDim);
  for (int num_threads : {1, 2, 5}) {
    Gradients actual(14001, kDim);
    ThreadExecutor executor(num_threads);
    const auto done = SumOfRows(terms, kDim, actual.results(), executor);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(actual, expected);
  }
}

TEST(SumOfRowsTest, OfNothingIsPadding) {
  Gradients sums(2, 1);
  InlineExecutor executor;
  const std::vector<ConstSparseRows> terms = {{}};
  ASSERT_TRUE(SumOfRows(terms, 1, sums.results(), executor));
  EXPECT_THAT(sums.rows, ElementsAre(kPaddingId, kPaddingId));
  EXPECT_THAT(sums.values, ElementsAre(0.0f, 0.0f));
}

TEST(SumOfRowsTest, NeedsRoomForTheDistinctRows) {
  const std::vector<int32_t> rows = {4, kPaddingId, 2, 4};
  const std::vector<float> values = {1.0f, NAN, 2.0f, 3.0f};
  const std::vector<ConstSparseRows> terms = {{rows, values}};
  InlineExecutor executor;
  Gradients enough(2, 1);
  ASSERT_TRUE(SumOfRows(terms, 1, enough.results(), executor));
  EXPECT_THAT(enough.rows, ElementsAre(2, 4));
  EXPECT_THAT(enough.values, ElementsAre(2.0f, 4.0f));
  Gradients too_few(1, 1);
  const auto done = SumOfRows(terms, 1, too_few.results(), executor);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("2 distinct rows, and room for"));
}

}  // namespace

}  // namespace jte::kernels
