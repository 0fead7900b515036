// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/random_coo.h"

namespace jte {
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
                                          testing::Values(1, 8, 40),
                                          testing::Values(0, 1, 3)));

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

}  // namespace
}  // namespace jte
