// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/messages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::kernels {

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

// One partition, as it is written to the buffers.
struct Cells {
  int64_t source;
  int64_t target;
  std::vector<int32_t> ids;
  std::vector<int32_t> samples;
  std::vector<float> gains;
};

// The buffers of one of several devices.
struct Batch {
  CooGeometry geometry;
  std::vector<Cells> partitions;  // in the order of the buffers
  std::vector<int32_t> row_pointers = {};
  std::vector<int32_t> embedding_ids = {};
  std::vector<int32_t> sample_ids = {};
  std::vector<float> gains = {};

  CooBuffers buffers() const {
    return {row_pointers, embedding_ids, sample_ids, gains};
  }
};

// Ids ascend in a partition and repeat. Every fifth partition is empty.
Batch RandomBatch(const CooGeometry& geometry, int64_t ids_per_partition) {
  std::mt19937_64 random(7);
  Batch batch{.geometry = geometry, .partitions = {}};
  const int64_t num_scs = geometry.num_sc_per_device;
  const int64_t num_targets = num_scs * geometry.num_devices;
  for (int64_t p = 0; p < num_scs * geometry.num_minibatches * num_targets;
       ++p) {
    Cells cells{.source = p / num_targets / geometry.num_minibatches,
                .target = p % num_targets,
                .ids = {},
                .samples = {},
                .gains = {}};
    const int64_t size = p % 5 == 4 ? 0 : random() % (2 * ids_per_partition);
    for (int64_t i = 0; i < size; ++i) {
      const auto row = static_cast<int32_t>(random() % geometry.rows_per_shard);
      const auto sample =
          static_cast<int32_t>(random() % geometry.batch_size_per_sc);
      cells.ids.push_back(row);
      cells.samples.push_back(sample);
      cells.gains.push_back(static_cast<float>(random() % 1000) / 999.0f);
    }
    std::ranges::sort(cells.ids);
    batch.partitions.push_back(std::move(cells));
  }
  return batch;
}

// Writes the buffers.
Batch WithBuffers(Batch batch) {
  const CooGeometry& geometry = batch.geometry;
  const int64_t num_targets = geometry.num_sc_per_device * geometry.num_devices;
  const int64_t block = RowPointersPerBlock(num_targets);
  const auto pad_to = [&batch](int64_t size) {
    batch.embedding_ids.resize(size, -5);
    batch.sample_ids.resize(size, -5);
    batch.gains.resize(size, kPaddingGain);
  };
  // Without minibatching all regions have one size.
  std::vector<int64_t> region_sizes(geometry.num_sc_per_device);
  for (const Cells& cells : batch.partitions) {
    region_sizes[cells.source] +=
        RoundUp<int64_t>(std::ssize(cells.ids), kAlignment);
  }
  const int64_t region_size = std::ranges::max(region_sizes) + kAlignment;
  int64_t origin = 0;
  for (const Cells& cells : batch.partitions) {
    if (!geometry.enable_minibatching) {
      origin = cells.source * region_size;
      if (cells.target == 0) pad_to(origin);
    }
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(batch.embedding_ids, cells.ids);
    append(batch.sample_ids, cells.samples);
    append(batch.gains, cells.gains);
    const auto end =
        static_cast<int32_t>(std::ssize(batch.embedding_ids) - origin);
    batch.row_pointers.push_back(end);
    pad_to(RoundUp<int64_t>(std::ssize(batch.embedding_ids), kAlignment));
    if (cells.target == num_targets - 1) {
      batch.row_pointers.resize(
          RoundUp<int64_t>(std::ssize(batch.row_pointers), block),
          RoundUp<int32_t>(end, kAlignment));
    }
  }
  pad_to(geometry.enable_minibatching
             ? std::ssize(batch.gains)
             : geometry.num_sc_per_device * region_size);
  batch.row_pointers.resize(
      RowPointersPerDevice({.global_device_count = geometry.num_devices,
                            .num_sc_per_device = geometry.num_sc_per_device},
                           geometry.enable_minibatching),
      -7);
  return batch;
}

// Results, at first with values that none may keep.
struct Messages {
  Messages(const Batch& batch, int64_t capacity)
      : requests(batch.geometry.num_devices,
                 std::vector<int32_t>(capacity, -9)),
        row_pointers(RowPointersPerBlock(batch.geometry.num_devices), -9),
        places(batch.gains.size(), -9),
        samples(batch.gains.size(), -9),
        gains(batch.gains.size(), -9.0f) {}

  bool operator==(const Messages&) const = default;

  ConstPackedEntries entries() const {
    return {row_pointers, places, samples, gains};
  }

  std::vector<std::vector<int32_t>> requests;
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> places;
  std::vector<int32_t> samples;
  std::vector<float> gains;
};

Messages Pack(const Batch& batch, int64_t capacity, int num_threads) {
  Messages packed(batch, capacity);
  const std::vector<std::span<int32_t>> requests(packed.requests.begin(),
                                                 packed.requests.end());
  ThreadExecutor executor(num_threads);
  PackMessages(
      batch.buffers(), batch.geometry, requests,
      {packed.row_pointers, packed.places, packed.samples, packed.gains},
      executor);
  return packed;
}

// What PackMessages is to give, by the plain formula; all rows fit.
Messages ExpectedMessages(const Batch& batch, int64_t capacity) {
  const CooGeometry& geometry = batch.geometry;
  Messages packed(batch, capacity);
  std::vector<std::vector<int32_t>> requests(geometry.num_devices);
  std::vector<int32_t> places;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  for (const Cells& cells : batch.partitions) {
    const int64_t owner = cells.target / geometry.num_sc_per_device;
    const int64_t shard = cells.target % geometry.num_sc_per_device;
    for (size_t i = 0; i < cells.ids.size(); ++i) {
      const int32_t id = cells.ids[i];
      if (i == 0 || id != cells.ids[i - 1]) {
        requests[owner].push_back(
            static_cast<int32_t>(shard * geometry.rows_per_shard + id));
      }
      places.push_back(static_cast<int32_t>(
          (owner << RowBits(geometry.num_devices, capacity)) +
          std::ssize(requests[owner]) - 1));
      samples.push_back(static_cast<int32_t>(
          cells.source * geometry.batch_size_per_sc + cells.samples[i]));
      gains.push_back(cells.gains[i]);
    }
  }
  for (auto& request : requests) request.resize(capacity, kNoRow);
  const auto size = static_cast<int32_t>(places.size());
  places.resize(packed.places.size());
  samples.resize(packed.samples.size());
  gains.resize(packed.gains.size());
  std::ranges::fill(packed.row_pointers, RoundUp<int32_t>(size, kAlignment));
  packed.row_pointers[0] = size;
  packed.requests = requests;
  packed.places = places;
  packed.samples = samples;
  packed.gains = gains;
  return packed;
}

// (G, S, minibatches; 0: without minibatching).
class MessagesTest
    : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {
 protected:
  static constexpr int64_t kCapacity = 30000;

  MessagesTest() {
    const auto [num_devices, num_scs, num_minibatches] = GetParam();
    const CooGeometry geometry{
        .num_sc_per_device = num_scs,
        .rows_per_shard = 900,
        .batch_size_per_sc = 50,
        .enable_minibatching = num_minibatches > 0,
        .num_minibatches = std::max<int64_t>(num_minibatches, 1),
        .num_devices = num_devices};
    const int64_t num_partitions =
        num_devices * num_scs * num_scs * geometry.num_minibatches;
    // Enough for several ranges of entries.
    batch_ = WithBuffers(RandomBatch(geometry, 25000 / num_partitions + 1));
  }

  Batch batch_;
};

TEST_P(MessagesTest, ArePackedInTheOrderOfTheBuffers) {
  const Messages expected = ExpectedMessages(batch_, kCapacity);
  ASSERT_GT(expected.row_pointers[0], 10000);
  for (int num_threads : {1, 2, 5}) {
    EXPECT_EQ(Pack(batch_, kCapacity, num_threads), expected);
  }
}

TEST_P(MessagesTest, HaveSumsOfTheGradientForEachSlot) {
  constexpr int64_t kDim = 5;
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> gradient(batch_.geometry.batch_size() * kDim);
  std::ranges::generate(gradient, [&] { return uniform(random); });
  const Messages packed = ExpectedMessages(batch_, kCapacity);
  const int64_t num_devices = batch_.geometry.num_devices;
  std::vector<std::vector<float>> expected(
      num_devices, std::vector<float>(kCapacity * kDim));
  const int bits = RowBits(num_devices, kCapacity);
  for (int64_t i = 0; i < packed.row_pointers[0]; ++i) {
    const int64_t device = packed.places[i] >> bits;
    const int64_t place = packed.places[i] - (device << bits);
    for (int64_t d = 0; d < kDim; ++d) {
      expected[device][place * kDim + d] +=
          packed.gains[i] * gradient[packed.samples[i] * kDim + d];
    }
  }
  for (int num_threads : {1, 2, 5}) {
    std::vector<std::vector<float>> actual(
        num_devices, std::vector<float>(kCapacity * kDim, NAN));
    ThreadExecutor executor(num_threads);
    SumGradients(packed.entries(), gradient, kDim,
                 std::vector<std::span<float>>(actual.begin(), actual.end()),
                 executor);
    EXPECT_EQ(actual, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MessagesTest,
    testing::Values(std::tuple(1, 1, 0), std::tuple(2, 1, 0),
                    std::tuple(3, 4, 0), std::tuple(9, 2, 0),
                    std::tuple(2, 2, 1), std::tuple(4, 3, 5)));

// Two devices of one core with three rows each. Of the first one rows 1 (twice)
// and 2 are wanted, of the second row 0.
Batch SmallBatch() {
  return WithBuffers({.geometry = {.num_sc_per_device = 1,
                                   .rows_per_shard = 3,
                                   .batch_size_per_sc = 2,
                                   .enable_minibatching = false,
                                   .num_minibatches = 1,
                                   .num_devices = 2},
                      .partitions = {{.source = 0,
                                      .target = 0,
                                      .ids = {1, 1, 2},
                                      .samples = {0, 1, 1},
                                      .gains = {0.5f, 0.25f, 1.0f}},
                                     {.source = 0,
                                      .target = 1,
                                      .ids = {0},
                                      .samples = {0},
                                      .gains = {2.0f}}}});
}

std::vector<std::vector<float>> SmallSums(const Messages& packed) {
  const std::vector<float> gradient = {8.0f, 16.0f};
  std::vector<std::vector<float>> sums(
      2, std::vector<float>(packed.requests[0].size(), -9.0f));
  InlineExecutor executor;
  SumGradients(packed.entries(), gradient, 1,
               std::vector<std::span<float>>(sums.begin(), sums.end()),
               executor);
  return sums;
}

TEST(PackMessagesTest, ByHand) {
  const Messages packed = Pack(SmallBatch(), /*capacity=*/3, 1);
  EXPECT_THAT(packed.requests, ElementsAre(ElementsAre(1, 2, kNoRow),
                                           ElementsAre(0, kNoRow, kNoRow)));
  EXPECT_EQ(packed.row_pointers[0], 4);
  // The second device's numbers begin at 4.
  EXPECT_THAT(std::span(packed.places).first(4), ElementsAre(0, 0, 1, 4));
  EXPECT_THAT(std::span(packed.samples).first(4), ElementsAre(0, 1, 1, 0));
  // 8 * 0.5 + 16 * 0.25, 16 * 1; 8 * 2.
  EXPECT_THAT(SmallSums(packed), ElementsAre(ElementsAre(8.0f, 16.0f, 0.0f),
                                             ElementsAre(16.0f, 0.0f, 0.0f)));
}

TEST(PackMessagesTest, BlocksMayBeFull) {
  const Messages packed = Pack(SmallBatch(), /*capacity=*/2, 1);
  EXPECT_FALSE(packed.entries().are_marked());
  EXPECT_THAT(packed.requests,
              ElementsAre(ElementsAre(1, 2), ElementsAre(0, kNoRow)));
  // The number of a device's first place follows that of the last one before.
  EXPECT_THAT(std::span(packed.places).first(4), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(SmallSums(packed),
              ElementsAre(ElementsAre(8.0f, 16.0f), ElementsAre(16.0f, 0.0f)));
}

TEST(PackMessagesTest, MoreRowsThanFitMarkTheEntries) {
  const Messages packed = Pack(SmallBatch(), /*capacity=*/1, 1);
  EXPECT_TRUE(packed.entries().are_marked());
  EXPECT_THAT(packed.requests, ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(SmallSums(packed), Each(Each(IsNan())));
}

// Rows that are asked for become NaN in an update.
TEST(PackMessagesTest, IdsOutOfRangeAskForTheNearestRow) {
  for (const auto& [id, row] : {std::pair(-1, 0), {3, 2}, {1 << 30, 2}}) {
    Batch batch = SmallBatch();
    batch.embedding_ids[8] = id;
    const Messages packed = Pack(batch, /*capacity=*/3, 1);
    EXPECT_TRUE(packed.entries().are_marked());
    EXPECT_THAT(packed.requests, ElementsAre(ElementsAre(1, 2, kNoRow),
                                             ElementsAre(row, kNoRow, kNoRow)));
    EXPECT_THAT(SmallSums(packed), Each(Each(IsNan())));
  }
}

TEST(PackMessagesTest, SamplesOutOfRangeMarkTheEntries) {
  for (const int32_t sample : {-1, 2}) {
    Batch batch = SmallBatch();
    batch.sample_ids[2] = sample;
    const Messages packed = Pack(batch, /*capacity=*/3, 1);
    EXPECT_TRUE(packed.entries().are_marked());
    EXPECT_EQ(packed.requests, Pack(SmallBatch(), 3, 1).requests);
  }
}

// Then all cells are entries for the first SparseCore.
TEST(PackMessagesTest, PartitionsThatAreNotValidAskForAllCells) {
  Batch beyond = SmallBatch();
  beyond.row_pointers[1] = 1000;
  Batch failed = SmallBatch();
  failed.row_pointers[0] = std::numeric_limits<int32_t>::min();
  Batch for_more_devices = SmallBatch();
  for_more_devices.row_pointers[2] = 17;
  for (const Batch& batch : {beyond, failed, for_more_devices}) {
    const Messages packed = Pack(batch, /*capacity=*/6, 1);
    EXPECT_TRUE(packed.entries().are_marked());
    // Padding has the id -5.
    EXPECT_THAT(packed.requests,
                ElementsAre(ElementsAre(1, 2, 0, kNoRow, kNoRow, kNoRow),
                            Each(kNoRow)));
    EXPECT_THAT(SmallSums(packed), Each(Each(IsNan())));
  }
}

template <typename T>
class ReadRowsTest : public testing::Test {};

using TableTypes = testing::Types<float, Bfloat16, Float16>;
TYPED_TEST_SUITE(ReadRowsTest, TableTypes);

TYPED_TEST(ReadRowsTest, GivesTheRowsThatAreThere) {
  constexpr int64_t kRows = 300, kDim = 3, kCapacity = 5000;
  const auto make = [](float value) {
    if constexpr (std::is_same_v<TypeParam, float>) {
      return value;
    } else {
      return RoundToNearest<TypeParam>(value);
    }
  };
  std::vector<TypeParam> table;
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    table.push_back(make(static_cast<float>(i) / 4));
  }
  std::mt19937_64 random(1);
  std::vector<std::vector<int32_t>> wanted(3, std::vector<int32_t>(kCapacity));
  for (auto& block : wanted) {
    // From -20 to 319.
    std::ranges::generate(
        block, [&] { return static_cast<int32_t>(random() % 340) - 20; });
    block.back() = std::numeric_limits<int32_t>::min();
  }
  for (int num_threads : {1, 3}) {
    std::vector<std::vector<TypeParam>> rows(
        3, std::vector<TypeParam>(kCapacity * kDim, make(-9.0f)));
    ThreadExecutor executor(num_threads);
    ReadRows(
        std::span<const TypeParam>(table), kDim,
        std::vector<std::span<const int32_t>>(wanted.begin(), wanted.end()),
        std::vector<TableValues>(rows.begin(), rows.end()), executor);
    for (size_t k = 0; k < rows.size(); ++k) {
      for (int64_t i = 0; i < kCapacity; ++i) {
        const int32_t row = wanted[k][i];
        for (int64_t d = 0; d < kDim; ++d) {
          const float value = ToFloat(rows[k][i * kDim + d]);
          if (0 <= row && row < kRows) {
            EXPECT_EQ(value, ToFloat(table[row * kDim + d]));
          } else {
            EXPECT_TRUE(std::isnan(value)) << "row " << row;
          }
        }
      }
    }
  }
}

}  // namespace

}  // namespace jte::kernels
