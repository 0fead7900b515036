// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"

namespace jte::kernels {

namespace {

using Fields = std::tuple<int64_t, int32_t, float>;  // sample, row, gain

std::vector<Fields> FieldsOf(const SortedSamples& samples) {
  std::vector<Fields> fields;
  for (int64_t s = 0; s < samples.num_samples(); ++s) {
    for (int64_t i = samples.begin(s); i < samples.ends[s]; ++i) {
      fields.emplace_back(s, samples.entries[i].row, samples.entries[i].gain);
    }
  }
  return fields;
}

TEST(SortBySampleTest, KeepsTheOrderOfTheBuffersForAnyNumberOfChunks) {
  const RandomCoo coo = MakeRandomCoo({.num_sc_per_device = 3,
                                       .rows_per_shard = 50,
                                       .batch_size_per_sc = 400,
                                       .enable_minibatching = false,
                                       .num_minibatches = 1},
                                      /*ids_per_sample=*/10, /*seed=*/1);
  std::vector<Fields> expected;
  for (const Entry& entry : coo.entries) {
    expected.emplace_back(entry.sample, entry.row, entry.gain);
  }
  std::ranges::stable_sort(
      expected, {}, [](const Fields& fields) { return std::get<0>(fields); });
  const CooBuffers buffers = coo.buffers();
  const auto partitions = ReadPartitions(buffers, coo.geometry).value();
  ThreadExecutor executor(2);
  SortScratch scratch;  // the second sort finds what the first left
  for (int64_t num_chunks : {1, 2, 7}) {
    const SortedSamples sorted = SortBySample(
        BufferEntries{buffers, partitions}, std::ssize(expected),
        /*first_sample=*/0, coo.num_samples(), num_chunks, scratch, executor);
    EXPECT_EQ(FieldsOf(sorted), expected) << num_chunks << " chunks";
  }
}

TEST(SortBySampleTest, CountsSamplesFromTheFirst) {
  const std::vector<Entry> entries = {{.row = 7, .sample = 12, .gain = 1},
                                      {.row = 8, .sample = 10, .gain = 2}};
  SortScratch scratch;
  InlineExecutor executor;
  const SortedSamples sorted =
      SortBySample(SpanEntries{entries}, /*num_entries=*/2, /*first_sample=*/10,
                   /*num_samples=*/4, /*num_chunks=*/1, scratch, executor);
  EXPECT_EQ(FieldsOf(sorted), (std::vector<Fields>{{0, 8, 2}, {2, 7, 1}}));
  EXPECT_EQ(sorted.begin(4), 2) << "the end";
}

}  // namespace

}  // namespace jte::kernels
