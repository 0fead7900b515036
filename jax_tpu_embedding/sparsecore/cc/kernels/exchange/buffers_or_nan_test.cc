// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/buffers_or_nan.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::kernels {

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

// Two SparseCores, each with a region of 16 cells: two entries for the first
// and one for the second. Rows are below 10 and samples below 5.
class BuffersOrNaNTest : public testing::Test {
 protected:
  BuffersOrNaNTest()
      : row_pointers_(2 * kMinRowPointersPerBlock, 16),
        embedding_ids_(32, 7),
        sample_ids_(32, 3),
        gains_(32, 1.0f) {
    for (const int64_t block : {0, 1}) {
      row_pointers_[block * kMinRowPointersPerBlock] = 2;
      row_pointers_[block * kMinRowPointersPerBlock + 1] = 9;
    }
  }

  BuffersOrNaN Read() {
    return {{row_pointers_, embedding_ids_, sample_ids_, gains_},
            geometry_,
            executor_};
  }

  // (first row, entries) of the partitions.
  static std::vector<std::pair<int64_t, int64_t>> PartitionsOf(
      const BuffersOrNaN& batch) {
    const auto partitions = ReadPartitions(batch.buffers(), batch.geometry());
    EXPECT_TRUE(partitions);
    std::vector<std::pair<int64_t, int64_t>> result;
    for (const Partition& p : *partitions) {
      result.emplace_back(p.first_row, p.end - p.begin);
    }
    return result;
  }

  CooGeometry geometry_ = {.num_sc_per_device = 2,
                           .rows_per_shard = 10,
                           .batch_size_per_sc = 5,
                           .enable_minibatching = false,
                           .num_minibatches = 1};
  std::vector<int32_t> row_pointers_, embedding_ids_, sample_ids_;
  std::vector<float> gains_;
  InlineExecutor executor_;
};

TEST_F(BuffersOrNaNTest, ValidBuffersStandForThemselves) {
  embedding_ids_[5] = -1;  // no entry
  const BuffersOrNaN batch = Read();
  EXPECT_FALSE(batch.are_corrupt());
  EXPECT_EQ(batch.buffers().embedding_ids.data(), embedding_ids_.data());
  EXPECT_EQ(batch.buffers().gains.data(), gains_.data());
}

TEST_F(BuffersOrNaNTest, NumbersOutOfRangeBecomeTheNearest) {
  embedding_ids_[0] = 10;
  sample_ids_[1] = -1;
  const BuffersOrNaN batch = Read();
  EXPECT_TRUE(batch.are_corrupt());
  EXPECT_EQ(batch.buffers().embedding_ids[0], 9);
  EXPECT_EQ(batch.buffers().sample_ids[1], 0);
  EXPECT_EQ(batch.buffers().embedding_ids[1], 7);
  EXPECT_THAT(batch.buffers().gains, Each(IsNan()));
  EXPECT_THAT(PartitionsOf(batch),
              ElementsAre(std::pair(0, 2), std::pair(10, 1), std::pair(0, 2),
                          std::pair(10, 1)));
}

TEST_F(BuffersOrNaNTest, OfWrongPartitionsAllCellsAreForTheFirst) {
  row_pointers_[0] = std::numeric_limits<int32_t>::min();
  const BuffersOrNaN batch = Read();
  EXPECT_TRUE(batch.are_corrupt());
  EXPECT_THAT(PartitionsOf(batch),
              ElementsAre(std::pair(0, 16), std::pair(0, 16)));
}

TEST_F(BuffersOrNaNTest, WithoutSamplesNothingIsAnEntry) {
  geometry_.batch_size_per_sc = 0;
  // All entries are wrong; and the partitions, too.
  for (const int32_t first : {2, -1}) {
    row_pointers_[0] = first;
    const BuffersOrNaN batch = Read();
    EXPECT_TRUE(batch.are_corrupt());
    for (const auto& [row, size] : PartitionsOf(batch)) EXPECT_EQ(size, 0);
  }
}

TEST_F(BuffersOrNaNTest, AWrongNumberOfMinibatchesIsWrongPartitions) {
  geometry_.enable_minibatching = true;
  row_pointers_.assign(2 * kMaxMinibatches * kMinRowPointersPerBlock, 0);
  for (const int64_t count : {int64_t{0}, kMaxMinibatches + 1}) {
    geometry_.num_minibatches = count;
    const BuffersOrNaN batch = Read();
    EXPECT_TRUE(batch.are_corrupt());
    EXPECT_THAT(PartitionsOf(batch), ElementsAre(std::pair(0, 32)));
  }
}

}  // namespace

}  // namespace jte::kernels
