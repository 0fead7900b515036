// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/input_batch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

template <typename T>
StridedArray Flat(const std::vector<T>& numbers, DType dtype) {
  return {.data = reinterpret_cast<const std::byte*>(numbers.data()),
          .type = {.dtype = dtype},
          .shape = {std::ssize(numbers), 1},
          .strides = {sizeof(T), 0}};
}

StridedArray Flat(const std::vector<int32_t>& numbers) {
  return Flat(numbers, DType::kInt32);
}
StridedArray Flat(const std::vector<int64_t>& numbers) {
  return Flat(numbers, DType::kInt64);
}
StridedArray Flat(const std::vector<float>& numbers) {
  return Flat(numbers, DType::kFloat32);
}

PreparedBatch PrepareOne(const RawBatch& raw) {
  InlineExecutor executor;
  auto prepared = Prepare(std::span(&raw, 1), executor);
  EXPECT_TRUE(prepared) << prepared.error().message;
  return std::move(prepared->front());
}

template <typename T>
std::span<const T> Ids(const PreparedBatch& prepared) {
  return std::get<std::span<const T>>(prepared.batch.ids);
}

TEST(PrepareTest, ViewsWhatIsPlain) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<float> weights = {1, 2, 3, 4};
  const std::vector<int64_t> splits = {0, 1, 4};
  const RawBatch raw = {.ids = Flat(ids),
                        .weights = Flat(weights),
                        .samples = RowSplits{Flat(splits), true}};
  EXPECT_EQ(PreparationWork(std::span(&raw, 1)), 0);
  const PreparedBatch prepared = PrepareOne(raw);
  EXPECT_EQ(Ids<int32_t>(prepared).data(), ids.data());
  EXPECT_EQ(prepared.batch.weights->data(), weights.data());
  EXPECT_EQ(prepared.batch.row_splits.data(), splits.data());
  EXPECT_EQ(prepared.batch.num_samples, 2);
  EXPECT_TRUE(prepared.copies.empty());
}

// They are checked later, when others may have written them again.
TEST(PrepareTest, CopiesRowSplitsOfOthers) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  std::vector<int64_t> splits = {0, 1, 4};
  const RawBatch raw = {.ids = Flat(ids), .samples = RowSplits{Flat(splits)}};
  EXPECT_EQ(PreparationWork(std::span(&raw, 1)), 3);
  const PreparedBatch prepared = PrepareOne(raw);
  splits[1] = 1000;
  EXPECT_THAT(prepared.batch.row_splits, ElementsAre(0, 1, 4));
  EXPECT_EQ(Ids<int32_t>(prepared).data(), ids.data());
}

TEST(PrepareTest, RowsOfAMatrixAreSamples) {
  const std::vector<int64_t> ids = {1, 2, 3, 4, 5, 6};
  StridedArray matrix = Flat(ids);
  matrix.shape = {2, 3};
  matrix.strides = {24, 8};
  const PreparedBatch prepared =
      PrepareOne({.ids = matrix, .samples = RowsOfArray{}});
  EXPECT_EQ(Ids<int64_t>(prepared).data(), ids.data());
  EXPECT_EQ(prepared.batch.num_samples, 2);
  EXPECT_EQ(prepared.batch.valency, 3);
}

TEST(PrepareTest, CopiesNumbersInSeveralRuns) {
  const std::vector<int32_t> ids = {7, 8, 9};
  const std::vector<double> weights = {0.5, 1.5, 2.5};
  const std::vector<int64_t> splits = {0, 2, 2, 3};
  const auto runs = [](const auto& numbers, DType dtype, int64_t stride) {
    const auto* data = reinterpret_cast<const std::byte*>(numbers.data());
    return std::vector<StridedRun>{{data + stride, 2, stride, {dtype}},
                                   {data, 1, stride, {dtype}}};
  };
  const RawBatch raw = {.ids = runs(ids, DType::kInt32, 4),
                        .weights = runs(weights, DType::kFloat64, 8),
                        .samples = RowSplits{Flat(splits), true}};
  EXPECT_EQ(PreparationWork(std::span(&raw, 1)), 2 * (2 + 3));
  const PreparedBatch prepared = PrepareOne(raw);
  EXPECT_THAT(Ids<int32_t>(prepared), ElementsAre(8, 9, 7));
  EXPECT_THAT(*prepared.batch.weights, ElementsAre(1.5f, 2.5f, 0.5f));
  EXPECT_EQ(prepared.batch.row_splits.data(), splits.data());
}

TEST(PrepareTest, ConvertsRowSplitsOfAnyType) {
  const std::vector<int32_t> ids = {1, 2, 3};
  const std::vector<int32_t> splits = {0, 1, 3};
  const PreparedBatch prepared =
      PrepareOne({.ids = Flat(ids), .samples = RowSplits{Flat(splits)}});
  EXPECT_THAT(prepared.batch.row_splits, ElementsAre(0, 1, 3));
  EXPECT_EQ(Ids<int32_t>(prepared).data(), ids.data());
}

TEST(PrepareTest, EntriesInOrderAreNotCopied) {
  const std::vector<int32_t> ids = {4, 5, 6};
  // Samples and positions, of which only the first matter.
  const std::vector<int64_t> indices = {1, 9, 1, 8, 3, 7};
  StridedArray samples = Flat(indices);
  samples.shape[0] = 3;
  samples.strides[0] = 16;
  const PreparedBatch prepared =
      PrepareOne({.ids = Flat(ids), .samples = SampleIndices{samples, 5}});
  EXPECT_EQ(Ids<int32_t>(prepared).data(), ids.data());
  EXPECT_THAT(prepared.batch.row_splits, ElementsAre(0, 0, 2, 2, 3, 3));
}

TEST(PrepareTest, EntriesOfASampleKeepTheirOrder) {
  const std::vector<int64_t> ids = {10, 11, 12, 13, 14};
  const std::vector<float> weights = {0, 1, 2, 3, 4};
  const std::vector<int32_t> samples = {2, 0, 2, 1, 0};
  const PreparedBatch prepared =
      PrepareOne({.ids = Flat(ids),
                  .weights = Flat(weights),
                  .samples = SampleIndices{Flat(samples), 3}});
  EXPECT_THAT(Ids<int64_t>(prepared), ElementsAre(11, 14, 13, 10, 12));
  EXPECT_THAT(*prepared.batch.weights, ElementsAre(1, 4, 3, 0, 2));
  EXPECT_THAT(prepared.batch.row_splits, ElementsAre(0, 2, 3, 5));
}

TEST(PrepareTest, ConvertsIndicesOfAnyType) {
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<uint8_t> samples = {1, 0};
  const PreparedBatch prepared =
      PrepareOne({.ids = Flat(ids),
                  .samples = SampleIndices{Flat(samples, DType::kUint8), 2}});
  EXPECT_THAT(Ids<int32_t>(prepared), ElementsAre(2, 1));
}

TEST(PrepareTest, NamesTheFirstEntryOutOfRange) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  InlineExecutor executor;
  for (int64_t sample : {-1, 3}) {
    const std::vector<int64_t> samples = {2, 1, sample, 7};
    const RawBatch raw = {.feature_name = "f",
                          .ids = Flat(ids),
                          .samples = SampleIndices{Flat(samples), 3}};
    const auto prepared = Prepare(std::span(&raw, 1), executor);
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().message,
              "Feature 'f': entry 2 is of sample " + std::to_string(sample) +
                  ", outside of [0, 3), the samples that its shape has. "
                  "Correct the indices or the shape.");
  }
}

TEST(PrepareTest, ABatchMayBeEmpty) {
  const std::vector<int32_t> none;
  EXPECT_EQ(
      PrepareOne({.ids = Flat(none), .samples = SampleIndices{Flat(none), 0}})
          .batch.num_samples,
      0);
  const std::vector<int64_t> zero = {0};
  EXPECT_EQ(PrepareOne({.ids = std::vector<StridedRun>(),
                        .samples = RowSplits{Flat(zero)}})
                .batch.num_samples,
            0);
}

// One byte of memory may be all of them.
TEST(CheckNumIdsTest, TooManyIdsAreAnError) {
  const std::byte byte = {};
  const auto check = [](RawNumbers ids) {
    const auto done = CheckNumIds(
        {.feature_name = "f", .ids = std::move(ids), .samples = RowsOfArray{}});
    return done ? "" : done.error().message;
  };
  const auto matrix = [&byte](int64_t rows, int64_t columns) {
    return StridedArray{
        .data = &byte, .type = {DType::kInt8}, .shape = {rows, columns}};
  };
  const auto run = [&byte](int64_t size) {
    return StridedRun{&byte, size, 0, {DType::kInt8}};
  };
  constexpr int64_t k2To60 = int64_t{1} << 60;
  const std::string message =
      "Feature 'f': has more than 2147483647 ids, which are too many for one "
      "step on one host. Use smaller batches.";
  EXPECT_EQ(check(matrix(kMaxIds, 1)), "");
  EXPECT_EQ(check(matrix(0, k2To60)), "");
  EXPECT_EQ(check(matrix(1 << 16, 1 << 15)), message);
  // As int64 the copy would have 2^65 bytes.
  EXPECT_EQ(check(matrix(4, k2To60)), message);
  EXPECT_EQ(check(matrix(16, k2To60)), message);
  EXPECT_EQ(check(std::vector{run(kMaxIds), run(0)}), "");
  EXPECT_EQ(check(std::vector{run(kMaxIds), run(1)}), message);
  // Their sum wraps to 0.
  EXPECT_EQ(check(std::vector(16, run(k2To60))), message);
}

// Larger than a task, so that several threads work on each array.
TEST(PrepareTest, IsTheSameForAnyNumberOfThreads) {
  constexpr int64_t kSize = 100'000;
  constexpr int64_t kNumSamples = 1000;
  std::mt19937 random(3);
  std::vector<int16_t> ids(kSize);
  std::vector<double> weights(kSize);
  std::vector<int64_t> samples(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    ids[i] = static_cast<int16_t>(random());
    weights[i] = i / 7.0;
    samples[i] = random() % kNumSamples;
  }
  std::vector<int64_t> order(kSize);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&samples](int64_t i) { return samples[i]; });
  std::vector<int32_t> expected_ids;
  std::vector<float> expected_weights;
  for (int64_t i : order) {
    expected_ids.push_back(ids[i]);
    expected_weights.push_back(static_cast<float>(weights[i]));
  }
  std::vector<StridedRun> runs;
  std::vector<int64_t> splits = {0};
  for (int64_t i = 0; i < kSize; i += 10) {
    runs.push_back({.data = reinterpret_cast<const std::byte*>(&ids[i]),
                    .size = 10,
                    .stride = 2,
                    .type = {DType::kInt16}});
    splits.push_back(i + 10);
  }
  const std::vector<RawBatch> raw = {
      {.ids = Flat(ids, DType::kInt16),
       .weights = Flat(weights, DType::kFloat64),
       .samples = SampleIndices{Flat(samples), kNumSamples}},
      {.ids = runs, .samples = RowSplits{Flat(splits)}}};
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadExecutor executor(num_threads);
    const auto prepared = Prepare(raw, executor);
    ASSERT_TRUE(prepared);
    EXPECT_THAT(Ids<int32_t>((*prepared)[0]), ElementsAreArray(expected_ids));
    EXPECT_THAT(*(*prepared)[0].batch.weights,
                ElementsAreArray(expected_weights));
    EXPECT_THAT(Ids<int32_t>((*prepared)[1]), ElementsAreArray(ids));
  }
}

}  // namespace
}  // namespace jte::convert
