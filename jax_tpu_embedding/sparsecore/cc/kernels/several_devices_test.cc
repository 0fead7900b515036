// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The kernels that read other devices' memory, and those that send messages,
// give the bits of one device that has all SparseCores.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/testing/random_coo.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::kernels {
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
  static constexpr int64_t kCapacity = 1700;  // rows of a message
  static constexpr float kLearningRate[] = {0.1f};
  static constexpr Optimizer kSgd{.rule = "sgd",
                                  .hyperparameters = kLearningRate};

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

  std::vector<float> LookupOnOneDevice() {
    std::vector<float> activations(coo_.num_samples() * kDim);
    EXPECT_TRUE(Lookup(coo_.buffers(), coo_.geometry, table_, kDim,
                       std::nullopt, activations, executor_));
    return activations;
  }

  std::vector<float> UpdateOnOneDevice(std::span<const float> gradient) {
    std::vector<float> table = table_;
    EXPECT_TRUE(ApplyRows(coo_.buffers(), coo_.geometry, gradient, kDim, kSgd,
                          {.table = std::span(table), .slots = {}}, executor_));
    return table;
  }

  // Updates the table on one device, and part by part on all.
  void ExpectTheSameUpdate() {
    std::vector<float> gradient = Random(coo_.num_samples() * kDim);
    std::vector<DeviceBatch> batches;
    for (int64_t device = 0; device < num_devices_; ++device) {
      batches.push_back(
          {Buffers(device), Part(gradient, device, num_devices_).data()});
    }
    std::vector<float> actual = table_;
    for (int64_t device = 0; device < num_devices_; ++device) {
      const auto done = ApplyBatches(
          batches, device, Geometry(), kDim, kSgd,
          {.table = Part(actual, device, num_devices_), .slots = {}},
          executor_);
      ASSERT_TRUE(done) << done.error().message;
    }
    EXPECT_EQ(actual, UpdateOnOneDevice(gradient));
  }

  // What one device sends to all.
  struct Message {
    std::vector<std::vector<int32_t>> requests;
    std::vector<int32_t> row_pointers, places, samples;
    std::vector<float> gains;

    ConstPackedEntries entries() const {
      return {row_pointers, places, samples, gains};
    }
  };

  Message Pack(int64_t device) {
    const CooBuffers buffers = Buffers(device);
    const size_t num_cells = buffers.gains.size();
    Message message{
        .requests = std::vector<std::vector<int32_t>>(
            num_devices_, std::vector<int32_t>(kCapacity)),
        .row_pointers = std::vector<int32_t>(RowPointersPerBlock(num_devices_)),
        .places = std::vector<int32_t>(num_cells),
        .samples = std::vector<int32_t>(num_cells),
        .gains = std::vector<float>(num_cells)};
    const std::vector<std::span<int32_t>> requests(message.requests.begin(),
                                                   message.requests.end());
    PackMessages(
        buffers, Geometry(), requests,
        {message.row_pointers, message.places, message.samples, message.gains},
        executor_);
    return message;
  }

  std::vector<Message> PackAll() {
    std::vector<Message> messages;
    for (int64_t k = 0; k < num_devices_; ++k) messages.push_back(Pack(k));
    return messages;
  }

  const int64_t num_devices_;
  RandomCoo coo_;
  std::vector<float> table_;
  ThreadExecutor executor_{2};
};

TEST_P(SeveralDevicesTest, LookupReadsTheTablesOfAll) {
  std::vector<LookupTable> tables;
  for (int64_t device = 0; device < num_devices_; ++device) {
    const std::vector<float>& table = table_;
    const size_t size = table.size() / num_devices_;
    tables.push_back(std::span(table.data() + device * size, size));
  }
  std::vector<float> actual(coo_.num_samples() * kDim);
  for (int64_t device = 0; device < num_devices_; ++device) {
    const auto done =
        LookupInTables(Buffers(device), Geometry(), tables, kDim, std::nullopt,
                       Part(actual, device, num_devices_), executor_);
    ASSERT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(actual, LookupOnOneDevice());
}

TEST_P(SeveralDevicesTest, LookupByMessages) {
  const std::vector<Message> messages = PackAll();
  // rows[owner][device]
  std::vector<std::vector<std::vector<float>>> rows;
  for (int64_t owner = 0; owner < num_devices_; ++owner) {
    std::vector<std::span<const int32_t>> wanted;
    for (const Message& m : messages) wanted.push_back(m.requests[owner]);
    auto& sent = rows.emplace_back(num_devices_,
                                   std::vector<float>(kCapacity * kDim, NAN));
    ReadRows(std::span<const float>(Part(table_, owner, num_devices_)), kDim,
             wanted, std::vector<TableValues>(sent.begin(), sent.end()),
             executor_);
  }
  std::vector<float> actual(coo_.num_samples() * kDim);
  for (int64_t device = 0; device < num_devices_; ++device) {
    std::vector<LookupTable> fetched;
    for (const auto& of_owner : rows) {
      fetched.push_back(std::span(of_owner[device]));
    }
    const auto& [requests, row_pointers, places, samples, gains] =
        messages[device];
    const CooGeometry geometry{
        .num_sc_per_device = 1,
        .rows_per_shard = kCapacity,
        .batch_size_per_sc = coo_.num_samples() / num_devices_,
        .enable_minibatching = false,
        .num_minibatches = 1,
        .num_devices = num_devices_};
    const auto done = LookupInTables(
        {row_pointers, places, samples, gains}, geometry, fetched, kDim,
        std::nullopt, Part(actual, device, num_devices_), executor_);
    ASSERT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(actual, LookupOnOneDevice());
}

TEST_P(SeveralDevicesTest, DevicesAddTheirRowsOneAfterTheOther) {
  std::vector<float> actual(coo_.num_samples() * kDim);
  for (int64_t device = 0; device < num_devices_; ++device) {
    for (int64_t owner = 0; owner < num_devices_; ++owner) {
      const auto done = AddRowsOf(
          owner, Buffers(device), Geometry(),
          std::span<const float>(Part(table_, owner, num_devices_)), kDim,
          std::nullopt, Part(actual, device, num_devices_), executor_);
      ASSERT_TRUE(done) << done.error().message;
    }
  }
  EXPECT_EQ(actual, LookupOnOneDevice());
}

TEST_P(SeveralDevicesTest, UpdateByMessages) {
  std::vector<float> gradient = Random(coo_.num_samples() * kDim);
  const std::vector<Message> messages = PackAll();
  // sums[device][owner]
  std::vector<std::vector<std::vector<float>>> sums;
  for (int64_t device = 0; device < num_devices_; ++device) {
    auto& sent = sums.emplace_back(num_devices_,
                                   std::vector<float>(kCapacity * kDim, NAN));
    SumGradients(
        messages[device].entries(), Part(gradient, device, num_devices_), kDim,
        std::vector<std::span<float>>(sent.begin(), sent.end()), executor_);
  }
  std::vector<float> actual = table_;
  for (int64_t owner = 0; owner < num_devices_; ++owner) {
    std::vector<ReceivedGradients> received;
    for (int64_t device = 0; device < num_devices_; ++device) {
      received.push_back(
          {messages[device].requests[owner], sums[device][owner].data()});
    }
    const std::span<float> table = Part(actual, owner, num_devices_);
    const auto done =
        ApplyReceived(received, std::ssize(table) / kDim, kDim, kSgd,
                      {.table = table, .slots = {}}, executor_);
    ASSERT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(actual, UpdateOnOneDevice(gradient));
}

TEST_P(SeveralDevicesTest, UpdateReadsTheBatchesOfAll) {
  ExpectTheSameUpdate();
}

TEST_P(SeveralDevicesTest, UpdateTakesEntriesInAnyOrder) {
  ReversePartitions(coo_);
  ExpectTheSameUpdate();
}

TEST(ApplyReceivedTest, NumbersThatAreNoRowsAreLeftOut) {
  std::vector<float> table = {10.0f, 20.0f};
  const std::vector<int32_t> rows = {1, kNoRow, 2, 1, -7, 0};
  const std::vector<float> gradients = {1.0f, NAN, NAN, 2.0f, NAN, 4.0f};
  const std::vector<float> learning_rate = {0.5f};
  InlineExecutor executor;
  const ReceivedGradients received[] = {{rows, gradients.data()}};
  ASSERT_TRUE(ApplyReceived(received, /*num_rows=*/2, /*dim=*/1,
                            {.rule = "sgd", .hyperparameters = learning_rate},
                            {.table = std::span(table), .slots = {}},
                            executor));
  // 10 - 4 / 2, 20 - (1 + 2) / 2.
  EXPECT_EQ(table, (std::vector<float>{8.0f, 18.5f}));
}

INSTANTIATE_TEST_SUITE_P(All, SeveralDevicesTest,
                         testing::Values(std::tuple(2, 1), std::tuple(2, 4),
                                         std::tuple(3, 3), std::tuple(8, 2)));

// Geometry alone says so: there is no such memory.
TEST(SeveralDevicesErrorTest, NumbersBeyondTheirBitsAreRefused) {
  constexpr int64_t kMany = (int64_t{1} << 30) + 1;
  const CooGeometry geometry{.num_sc_per_device = 1,
                             .rows_per_shard = kMany,
                             .batch_size_per_sc = kMany,
                             .enable_minibatching = false,
                             .num_minibatches = 1,
                             .num_devices = 3};
  const float learning_rate = 0.5f;
  const Optimizer sgd{.rule = "sgd", .hyperparameters = {&learning_rate, 1}};
  const Tables tables{.table = std::span<float>(), .slots = {}};
  const ReceivedGradients received{
      .rows = {static_cast<const int32_t*>(nullptr), kMany},
      .gradients = nullptr};
  const LookupTable table = std::span<const float>();
  InlineExecutor executor;
  const std::pair<Result<void>, std::string> cases[] = {
      {LookupInTables({}, geometry, {&table, 1}, 1, std::nullopt, {}, executor),
       "The tables of 3 devices have 1073741825 rows each, expected numbers of "
       "32 bits."},
      {ApplyBatches({}, 0, geometry, 1, sgd, tables, executor),
       "The batches of 3 devices have 1073741825 samples each, expected "
       "numbers of 31 bits."},
      {ApplyReceived(std::vector(3, received), 1, 1, sgd, tables, executor),
       "The batches of 3 devices have 1073741825 samples each, expected "
       "numbers of 31 bits."},
  };
  for (const auto& [done, message] : cases) {
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message, message);
  }
}

TEST(SpreadRowsTest, NumbersBeyondTheirBitsAreRefused) {
  // 3 devices need 2 bits, and 2^30 rows need 30.
  EXPECT_TRUE(NumbersFit(3, int64_t{1} << 30, 32));
  EXPECT_FALSE(NumbersFit(3, int64_t{1} << 30, 31));
  EXPECT_FALSE(NumbersFit(3, (int64_t{1} << 30) + 1, 32));
  EXPECT_TRUE(NumbersFit(1, (int64_t{1} << 31) - 1, 31));
  // No rows take no bits; more than there are bits for do not fit.
  EXPECT_TRUE(NumbersFit(3, 0, 31));
  EXPECT_FALSE(NumbersFit(2, int64_t{1} << 32, 31));
  EXPECT_FALSE(NumbersFit(1, (int64_t{1} << 31) + 1, 31));
}

}  // namespace
}  // namespace jte::kernels
