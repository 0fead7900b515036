// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"

namespace jte::kernels {

namespace {

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomTable(int64_t size) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> table(size);
  for (float& value : table) value = normal(random);
  return table;
}

// The kernel's promise, in the order that it promises.
std::vector<float> ExpectedActivations(const RandomCoo& coo,
                                       const std::vector<float>& table,
                                       int64_t dim) {
  std::vector<float> out(coo.num_samples() * dim, 0.0f);
  for (const Entry& entry : coo.entries) {
    for (int64_t d = 0; d < dim; ++d) {
      out[entry.sample * dim + d] += entry.gain * table[entry.row * dim + d];
    }
  }
  return out;
}

// (S, D, minibatches; 0: without minibatching).
class LookupTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(LookupTest, AddsTermsInOrderForAnyNumberOfThreads) {
  const auto [num_scs, dim, num_minibatches] = GetParam();
  const RandomCoo coo =
      MakeRandomCoo({.num_sc_per_device = num_scs,
                     .rows_per_shard = 1000,
                     .batch_size_per_sc = 1200,
                     .enable_minibatching = num_minibatches > 0,
                     .num_minibatches = std::max<int64_t>(num_minibatches, 1)},
                    /*ids_per_sample=*/8, /*seed=*/2);
  const std::vector<float> table = RandomTable(coo.num_rows() * dim);
  const std::vector<float> expected = ExpectedActivations(coo, table, dim);
  for (int num_threads : {1, 2, 5}) {
    ThreadExecutor executor(num_threads);
    std::vector<float> out(coo.num_samples() * dim, kUnwritten);
    const auto done = Lookup(coo.buffers(), coo.geometry, table, dim,
                             /*quantization=*/std::nullopt, out, executor);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(out, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LookupTest,
                         testing::Combine(testing::Values(1, 2, 3, 9),
                                          testing::Values(1, 8, 40, 103),
                                          testing::Values(0, 1, 3)));

// Moves the entries of each sample to another.
struct Crowding {
  std::string_view name;
  int32_t (*to_sample)(int32_t sample);
};

constexpr Crowding kCrowdings[] = {
    {"even", [](int32_t sample) { return sample; }},
    {"most samples are empty", [](int32_t sample) { return sample / 64 * 64; }},
    {"one sample has half of the entries",
     [](int32_t sample) { return sample % 2 == 0 ? 5000 : sample; }},
    {"only the last sample has any", [](int32_t) { return 5999; }},
};

// Batches that are sorted at once, and larger ones, which are cut into blocks.
TEST(LookupTest, SkewedBatchesAddTheSameTerms) {
  constexpr int64_t kDim = 24;
  for (const int64_t num_scs : {2, 3}) {
    for (const Crowding& crowding : kCrowdings) {
      RandomCoo coo = MakeRandomCoo({.num_sc_per_device = num_scs,
                                     .rows_per_shard = 300,
                                     .batch_size_per_sc = 6000,
                                     .enable_minibatching = false,
                                     .num_minibatches = 1},
                                    /*ids_per_sample=*/3, /*seed=*/4);
      ASSERT_EQ(coo.num_samples() > kMaxSortedSamples, num_scs == 3);
      for (int32_t& sample : coo.sample_ids) {
        if (sample >= 0) sample = crowding.to_sample(sample);
      }
      for (Entry& entry : coo.entries) {
        const int32_t first = entry.sample / 6000 * 6000;
        entry.sample = first + crowding.to_sample(entry.sample - first);
      }
      const std::vector<float> table = RandomTable(coo.num_rows() * kDim);
      const std::vector<float> expected = ExpectedActivations(coo, table, kDim);
      for (int num_threads : {1, 3}) {
        ThreadExecutor executor(num_threads);
        std::vector<float> out(expected.size(), kUnwritten);
        ASSERT_TRUE(Lookup(coo.buffers(), coo.geometry, table, kDim,
                           std::nullopt, out, executor));
        EXPECT_EQ(out, expected) << crowding.name << ", " << num_scs;
      }
    }
  }
}

// Rows of codes, and the values that they stand for.
struct CodedTable {
  CodedTable(int64_t num_rows, int64_t dim) : values(num_rows * dim) {
    std::mt19937_64 random(8);
    std::normal_distribution<float> normal;
    // What follows scale and bias must not count.
    words.assign(num_rows * CodeWordsPerRow(dim), CodeWord{0xffffffff});
    for (int64_t row = 0; row < num_rows; ++row) {
      CodeWord* const of_row = &words[row * CodeWordsPerRow(dim)];
      const float scale = normal(random);
      const float bias = normal(random);
      for (int64_t d = 0; d < dim; ++d) {
        const uint32_t code = random() % 256;
        reinterpret_cast<uint8_t*>(of_row)[d] = static_cast<uint8_t>(code);
        values[row * dim + d] = static_cast<float>(code) * scale + bias;
      }
      of_row[NumCodeWords(dim)] = CodeWord{std::bit_cast<uint32_t>(scale)};
      of_row[NumCodeWords(dim) + 1] = CodeWord{std::bit_cast<uint32_t>(bias)};
    }
  }

  std::vector<CodeWord> words;
  std::vector<float> values;
};

TEST(LookupTest, RowsOfCodesHaveTheBitsOfTheirValues) {
  for (const int64_t dim : {1, 3, 8, 30, 32, 64, 103, 128, 200}) {
    SCOPED_TRACE(dim);
    const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 2,
                                         .rows_per_shard = 50,
                                         .batch_size_per_sc = 40,
                                         .enable_minibatching = false,
                                         .num_minibatches = 1},
                                        /*ids_per_sample=*/5, /*seed=*/3);
    const CodedTable table(coo.num_rows(), dim);
    const std::vector<float> expected =
        ExpectedActivations(coo, table.values, dim);
    ThreadExecutor executor(2);
    std::vector<float> out(expected.size(), kUnwritten);
    ASSERT_TRUE(Lookup(coo.buffers(), coo.geometry, table.words, dim,
                       std::nullopt, out, executor));
    EXPECT_EQ(out, expected);

    std::ranges::fill(out, 0.0f);
    ASSERT_TRUE(AddRowsOf(/*device=*/0, coo.buffers(), coo.geometry,
                          table.words, dim, std::nullopt, out, executor));
    EXPECT_EQ(out, expected);

    const Quantization quantization = {
        .min_value = -3, .max_value = 50, .num_buckets = 9};
    std::vector<float> of_values = out;
    ASSERT_TRUE(Lookup(coo.buffers(), coo.geometry, table.words, dim,
                       quantization, out, executor));
    ASSERT_TRUE(Lookup(coo.buffers(), coo.geometry, table.values, dim,
                       quantization, of_values, executor));
    EXPECT_EQ(out, of_values);
    EXPECT_NE(out, expected);
  }
}

TEST(LookupTest, SamplesWithoutEntriesAreZero) {
  RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 2,
                                 .rows_per_shard = 4,
                                 .batch_size_per_sc = 3,
                                 .enable_minibatching = false,
                                 .num_minibatches = 1},
                                /*ids_per_sample=*/0, /*seed=*/0);
  const std::vector<float> table(8 * 2, 1.0f);
  std::vector<float> out(6 * 2, kUnwritten);
  InlineExecutor executor;
  ASSERT_TRUE(Lookup(coo.buffers(), coo.geometry, table, 2, std::nullopt, out,
                     executor));
  EXPECT_EQ(out, std::vector<float>(12, 0.0f));
}

TEST(LookupTest, AnIdOutOfRangeIsAnError) {
  RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 1,
                                 .rows_per_shard = 4,
                                 .batch_size_per_sc = 3,
                                 .enable_minibatching = false,
                                 .num_minibatches = 1},
                                /*ids_per_sample=*/1, /*seed=*/0);
  coo.embedding_ids[1] = 4;
  const std::vector<float> table(4 * 2, 1.0f);
  std::vector<float> out(3 * 2);
  InlineExecutor executor;
  const auto done = Lookup(coo.buffers(), coo.geometry, table, 2, std::nullopt,
                           out, executor);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message,
            "embedding_ids[1] is 4, expected 0 to 3: a row of the table's "
            "shard.");
}

TEST(LookupTest, MoreEntriesThanCanBeCountedAreAnError) {
  // Three regions of 2^31 - 8 cells. The error comes before they are read, so
  // that they need not exist.
  constexpr int64_t kRegion = (int64_t{1} << 31) - 8;
  const std::vector<int32_t> row_pointers(24, kRegion);
  const int32_t cell = 0;
  const float gain = 1;
  const std::span<const int32_t> ids(&cell, 3 * kRegion);
  const CooBuffers buffers{row_pointers, ids, ids, {&gain, 3 * kRegion}};
  const std::vector<float> table(6, 1.0f);
  const std::vector<LookupTable> tables = {std::span(table)};
  std::vector<float> out(6);
  InlineExecutor executor;
  const auto done = LookupInTables(buffers,
                                   {.num_sc_per_device = 3,
                                    .rows_per_shard = 1,
                                    .batch_size_per_sc = 1,
                                    .enable_minibatching = false,
                                    .num_minibatches = 1},
                                   tables, 2, std::nullopt, out, executor);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message,
            "The buffers of a device have 6442450920 entries, expected at most "
            "4294967295. Split the batch over more devices.");
}

}  // namespace

}  // namespace jte::kernels
