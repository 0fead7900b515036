// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The kernels that read other devices' memory give the bits of one device that
// has all SparseCores.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/apply_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/spread_rows.h"

namespace jte {
namespace {

std::vector<float> Random(int64_t size) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  std::vector<float> values(size);
  for (float& value : values) value = uniform(random);
  return values;
}

// Part `device` of `num_devices` equal ones.
template <typename T>
std::span<T> Part(std::vector<T>& values, int64_t device, int64_t num_devices) {
  const size_t size = values.size() / num_devices;
  return {values.data() + device * size, size};
}

// Turns the order of the entries of each partition around.
void ReversePartitions(RandomCoo& coo) {
  const auto partitions = ReadPartitions(coo.buffers(), coo.geometry);
  for (const auto& [begin, end, first_row, first_sample, device] :
       *partitions) {
    const auto reverse = [begin, end](auto& cells) {
      std::reverse(cells.begin() + begin, cells.begin() + end);
    };
    reverse(coo.embedding_ids);
    reverse(coo.sample_ids);
    reverse(coo.gains);
  }
}

// (devices, SparseCores of each).
class SeveralDevicesTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  static constexpr int64_t kDim = 40;

  SeveralDevicesTest()
      : num_devices_(std::get<0>(GetParam())),
        coo_(MakeRandomCoo(
            {.num_sc_per_device = num_devices_ * std::get<1>(GetParam()),
             .rows_per_shard = 100,
             .batch_size_per_sc = 70,
             .enable_minibatching = false,
             .num_minibatches = 1},
            /*ids_per_sample=*/5, /*seed=*/6)),
        table_(Random(coo_.num_rows() * kDim)) {}

  // Regions and row pointers of SparseCores follow each other.
  CooBuffers Buffers(int64_t device) {
    return {Part(coo_.row_pointers, device, num_devices_),
            Part(coo_.embedding_ids, device, num_devices_),
            Part(coo_.sample_ids, device, num_devices_),
            Part(coo_.gains, device, num_devices_)};
  }

  CooGeometry Geometry() const {
    CooGeometry geometry = coo_.geometry;
    geometry.num_sc_per_device /= num_devices_;
    geometry.num_devices = num_devices_;
    return geometry;
  }

  // Updates the table on one device, and part by part on all.
  void ExpectTheSameUpdate() {
    std::vector<float> gradient = Random(coo_.num_samples() * kDim);
    const std::vector<float> learning_rate = {0.1f};
    const Optimizer optimizer{.rule = "sgd", .hyperparameters = learning_rate};
    std::vector<float> expected = table_;
    ASSERT_TRUE(
        ApplyRows(coo_.buffers(), coo_.geometry, gradient, kDim, optimizer,
                  {.table = std::span(expected), .slots = {}}, executor_));
    std::vector<DeviceBatch> batches;
    for (int64_t device = 0; device < num_devices_; ++device) {
      batches.push_back(
          {Buffers(device), Part(gradient, device, num_devices_).data()});
    }
    std::vector<float> actual = table_;
    for (int64_t device = 0; device < num_devices_; ++device) {
      const auto done = ApplyBatches(
          batches, device, Geometry(), kDim, optimizer,
          {.table = Part(actual, device, num_devices_), .slots = {}},
          executor_);
      ASSERT_TRUE(done) << done.error().message;
    }
    EXPECT_EQ(actual, expected);
  }

  const int64_t num_devices_;
  RandomCoo coo_;
  std::vector<float> table_;
  ThreadExecutor executor_{2};
};

TEST_P(SeveralDevicesTest, LookupReadsTheTablesOfAll) {
  std::vector<float> expected(coo_.num_samples() * kDim);
  ASSERT_TRUE(Lookup(coo_.buffers(), coo_.geometry, table_, kDim, std::nullopt,
                     expected, executor_));
  std::vector<ConstTableValues> tables;
  for (int64_t device = 0; device < num_devices_; ++device) {
    const std::vector<float>& table = table_;
    const size_t size = table.size() / num_devices_;
    tables.push_back(std::span(table.data() + device * size, size));
  }
  std::vector<float> actual(expected.size());
  for (int64_t device = 0; device < num_devices_; ++device) {
    const auto done =
        LookupInTables(Buffers(device), Geometry(), tables, kDim, std::nullopt,
                       Part(actual, device, num_devices_), executor_);
    ASSERT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(actual, expected);
}

TEST_P(SeveralDevicesTest, UpdateReadsTheBatchesOfAll) {
  ExpectTheSameUpdate();
}

TEST_P(SeveralDevicesTest, UpdateTakesEntriesInAnyOrder) {
  ReversePartitions(coo_);
  ExpectTheSameUpdate();
}

INSTANTIATE_TEST_SUITE_P(All, SeveralDevicesTest,
                         testing::Values(std::tuple(2, 1), std::tuple(2, 4),
                                         std::tuple(3, 3), std::tuple(8, 2)));

TEST(SpreadRowsTest, NumbersBeyondTheirBitsAreRefused) {
  // 3 devices need 2 bits, and 2^30 rows need 30.
  EXPECT_TRUE(NumbersFit(3, int64_t{1} << 30, 32));
  EXPECT_FALSE(NumbersFit(3, int64_t{1} << 30, 31));
  EXPECT_FALSE(NumbersFit(3, (int64_t{1} << 30) + 1, 32));
  EXPECT_TRUE(NumbersFit(1, (int64_t{1} << 31) - 1, 31));
}

}  // namespace
}  // namespace jte
