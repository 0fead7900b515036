// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"

namespace jte::kernels {

namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;

// Two SparseCores and two partitions, without minibatches: samples
// [0, 0, 3] [5, 2] | [] [1], 16 cells per core. Cells without entry hold -1.
struct Example {
  std::vector<int32_t> row_pointers = {2, 10, 16, 16, 16, 16, 16, 16,
                                       0, 1,  8,  8,  8,  8,  8,  8};
  std::vector<int32_t> embedding_ids = std::vector<int32_t>(32, -1);
  std::vector<int32_t> sample_ids = std::vector<int32_t>(32, -1);
  std::vector<float> gains = std::vector<float>(32, 1.0f);
  CooGeometry geometry{.num_sc_per_device = 2,
                       .rows_per_shard = 4,
                       .batch_size_per_sc = 2,
                       .enable_minibatching = false,
                       .num_minibatches = 1};

  Example() {
    SetCells(0, {0, 1}, {0, 1});
    SetCells(8, {1, 2}, {0, 1});
    SetCells(16, {0}, {1});
  }

  void SetCells(int64_t first, const std::vector<int32_t>& ids,
                const std::vector<int32_t>& samples) {
    std::ranges::copy(ids, embedding_ids.begin() + first);
    std::ranges::copy(samples, sample_ids.begin() + first);
  }

  CooBuffers buffers() const {
    return {row_pointers, embedding_ids, sample_ids, gains};
  }

  // The first error that a kernel would find.
  Result<void> Check() const {
    JTE_ASSIGN_OR_RETURN(const auto partitions,
                         ReadPartitions(buffers(), geometry));
    InlineExecutor executor;
    return CheckEntries(buffers(), partitions, geometry, executor);
  }
};

TEST(PartitionsTest, ReadsRegionsPerSparseCore) {
  const Example example;
  const auto partitions = ReadPartitions(example.buffers(), example.geometry);
  ASSERT_TRUE(partitions);
  // begin, end, first row of the target, first sample of the source, device.
  EXPECT_THAT(*partitions,
              ElementsAre(FieldsAre(0, 2, 0, 0, 0), FieldsAre(8, 10, 4, 0, 0),
                          FieldsAre(16, 17, 4, 2, 0)));
  EXPECT_EQ(CountEntries(*partitions), 5);
}

TEST(PartitionsTest, ReadsAPackedRunPerMinibatch) {
  // Two SparseCores, three minibatches.
  Example example;
  example.geometry.enable_minibatching = true;
  example.geometry.num_minibatches = 3;
  example.embedding_ids.resize(40);
  example.row_pointers = {1,  8,  8,  8,  8,  8,  8,  8,  10,
                          16, 16, 16, 16, 16, 16, 16, 17, 26};
  example.row_pointers.resize(24, 32);
  for (int32_t end : {32, 32, 33, 40, 40, 40}) {
    example.row_pointers.push_back(end);
    if (example.row_pointers.size() % 8 == 2) {
      example.row_pointers.resize(example.row_pointers.size() + 6, end);
    }
  }
  example.row_pointers.resize(8 * 2 * 64, -1);  // no meaning
  const auto partitions = ReadPartitions(example.buffers(), example.geometry);
  ASSERT_TRUE(partitions) << partitions.error().message;
  EXPECT_THAT(
      *partitions,
      ElementsAre(FieldsAre(0, 1, 0, 0, 0), FieldsAre(8, 10, 0, 0, 0),
                  FieldsAre(16, 17, 0, 0, 0), FieldsAre(24, 26, 4, 0, 0),
                  FieldsAre(32, 33, 0, 2, 0)));
}

TEST(PartitionsTest, APartitionMayFillItsRegion) {
  Example example;
  example.row_pointers = {16, 16, 16, 16, 16, 16, 16, 16,
                          0,  16, 16, 16, 16, 16, 16, 16};
  const auto partitions = ReadPartitions(example.buffers(), example.geometry);
  ASSERT_TRUE(partitions);
  EXPECT_THAT(*partitions, ElementsAre(FieldsAre(0, 16, 0, 0, 0),
                                       FieldsAre(16, 32, 4, 2, 0)));
}

// Pointers 2 to 7 belong to no partition.
TEST(PartitionsTest, NothingIsAskedOfOtherPointersButThatNothingFollows) {
  for (const int32_t pointer : {0, -1, INT32_MIN, 10, 15, 16}) {
    Example example;
    std::fill_n(example.row_pointers.begin() + 2, 6, pointer);
    const auto partitions = ReadPartitions(example.buffers(), example.geometry);
    ASSERT_TRUE(partitions) << partitions.error().message;
    EXPECT_EQ(CountEntries(*partitions), 5);
  }
}

TEST(PartitionsTest, PiecesCoverARangeOfEntries) {
  const std::vector<Partition> partitions = {
      {.begin = 0, .end = 2, .first_row = 0, .first_sample = 0},
      {.begin = 8, .end = 11, .first_row = 0, .first_sample = 0},
      {.begin = 16, .end = 17, .first_row = 0, .first_sample = 0},
  };
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t end = begin; end <= 6; ++end) {
      std::vector<int64_t> cells;
      ForEachPiece(partitions, begin, end, [&cells](const Piece& piece) {
        EXPECT_GE(piece.begin, piece.partition.begin);
        EXPECT_LE(piece.end, piece.partition.end);
        for (int64_t i = piece.begin; i < piece.end; ++i) cells.push_back(i);
      });
      const std::vector<int64_t> all = {0, 1, 8, 9, 10, 16};
      EXPECT_EQ(cells,
                std::vector<int64_t>(all.begin() + begin, all.begin() + end));
    }
  }
}

struct BadCase {
  std::string name;
  std::function<void(Example&)> change;
  std::string message;  // empty: valid
};

class BadBuffersTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadBuffersTest, IsAnErrorThatNamesTheCell) {
  Example example;
  GetParam().change(example);
  const Result<void> checked = example.Check();
  if (GetParam().message.empty()) {
    EXPECT_TRUE(checked) << checked.error().message;
  } else {
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(checked.error().message, HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadBuffersTest,
    testing::ValuesIn(std::vector<BadCase>{
        {"Baseline", [](Example&) {}, ""},
        // 12 cells per core: the first partition fills those of the first one.
        {"EndOfARegionOfAnySize",
         [](Example& e) {
           for (auto* cells : {&e.embedding_ids, &e.sample_ids}) {
             cells->assign(24, 0);
           }
           e.gains.resize(24);
           e.row_pointers = {12, 12, 12, 12, 12, 12, 12, 12,
                             0,  1,  8,  8,  8,  8,  8,  8};
         },
         ""},
        {"TooFewRowPointers", [](Example& e) { e.row_pointers.resize(8); },
         "row_pointers has 8 entries, expected 16"},
        {"EndPastRegion", [](Example& e) { e.row_pointers[1] = 17; },
         "row_pointers[1] is 17, expected 8 to 16"},
        {"EndBeforePartition", [](Example& e) { e.row_pointers[1] = 7; },
         "row_pointers[1] is 7, expected 8 to 16"},
        {"NegativeEnd", [](Example& e) { e.row_pointers[8] = -1; },
         "row_pointers[8] is -1, expected 0 to 16: the end of the partition of "
         "source SparseCore 1 and target SparseCore 0"},
        {"OneMorePartition", [](Example& e) { e.row_pointers[2] = 17; },
         "row_pointers[2] is 17, expected at most 16: the end of the program's "
         "2 partitions, rounded up. The buffers look made for more devices: "
         "preprocess with global_device_count=1 and num_sc_per_device=2."},
        {"LastPointerOfTheSecondCore",
         [](Example& e) { e.row_pointers[15] = 9; },
         "row_pointers[15] is 9, expected at most 8: the end of"},
        {"PartitionsOfOtherDevices",
         [](Example& e) {
           e.geometry.num_devices = 3;
           e.row_pointers[5] = 16;
           e.row_pointers[6] = INT32_MAX;
         },
         "row_pointers[6] is 2147483647, expected at most 16: the end of the "
         "program's 6 partitions, rounded up. The buffers look made for more "
         "devices: preprocess with global_device_count=3 and "
         "num_sc_per_device=2."},
        {"OneMoreInTheLastMinibatch",
         [](Example& e) {
           e.geometry.enable_minibatching = true;
           e.geometry.num_minibatches = 3;
           e.row_pointers.assign(16 * 64, 100);  // those without a meaning
           std::fill_n(e.row_pointers.begin(), 48, 8);
           e.row_pointers[47] = 9;
         },
         "row_pointers[47] is 9, expected at most 8"},
        {"HugeEnd", [](Example& e) { e.row_pointers[9] = INT32_MAX; },
         "row_pointers[9] is 2147483647"},
        {"IdTooLarge", [](Example& e) { e.embedding_ids[9] = 4; },
         "embedding_ids[9] is 4, expected 0 to 3"},
        {"NegativeId", [](Example& e) { e.embedding_ids[0] = -1; },
         "embedding_ids[0] is -1"},
        {"SampleTooLarge", [](Example& e) { e.sample_ids[16] = 2; },
         "sample_ids[16] is 2, expected 0 to 1"},
        {"NegativeSample", [](Example& e) { e.sample_ids[1] = INT32_MIN; },
         "sample_ids[1] is -2147483648"},
        {"FirstOfTwo",
         [](Example& e) { e.sample_ids[1] = e.embedding_ids[0] = 9; },
         "embedding_ids[0] is 9"},
        {"NoMinibatch",
         [](Example& e) {
           e.geometry.enable_minibatching = true;
           e.geometry.num_minibatches = 0;
           e.row_pointers.resize(16 * 64);
         },
         "num_minibatches is 0, expected 1 to 64"},
        {"TooManyMinibatches",
         [](Example& e) {
           e.geometry.enable_minibatching = true;
           e.geometry.num_minibatches = 65;
           e.row_pointers.resize(16 * 64);
         },
         "num_minibatches is 65, expected 1 to 64"},
    }),
    [](const auto& info) { return info.param.name; });

}  // namespace

}  // namespace jte::kernels
