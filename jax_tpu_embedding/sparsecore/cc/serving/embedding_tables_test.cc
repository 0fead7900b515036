// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/testing/six_rows.h"

namespace jte::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<EmbeddingTables> OpenSixRows(
    EmbeddingTables::OutOfRange out_of_range =
        EmbeddingTables::OutOfRange::kError,
    Executor* copier = nullptr) {
  auto tables = EmbeddingTables::Open({SixRows()}, 3, out_of_range, copier);
  EXPECT_TRUE(tables) << tables.error().message;
  return *std::move(tables);
}

// Whether rows are copied to huge pages.
class AnyMemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  Executor* copier() { return GetParam() ? &copier_ : nullptr; }

 private:
  ThreadExecutor copier_{3};
};

INSTANTIATE_TEST_SUITE_P(, AnyMemoryTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Copied" : "Mapped";
                         });

TEST(EmbeddingTablesTest, LooksUpRowsAndSamples) {
  const auto tables = OpenSixRows();
  const std::vector<int64_t> ids = {5, 0, 2};
  const std::vector<int64_t> splits = {0, 2, 2, 3};
  const std::vector<float> weights = {1, 3, 2};
  std::vector<float> rows(6, -1);
  std::vector<float> pooled(6, -1);
  std::vector<float> weighted(6, -1);
  const Request requests[] = {
      {.ids = ids, .out = rows},
      {.kind = Request::Kind::kSplits,
       .ids = ids,
       .row_splits = splits,
       .out = pooled},
      {.kind = Request::Kind::kSplits,
       .ids = ids,
       .row_splits = splits,
       .weights = weights,
       .combiner = convert::Combiner::kSum,
       .out = weighted},
  };
  InlineExecutor executor;
  ASSERT_TRUE(tables->Look(requests, executor));
  EXPECT_THAT(rows, ElementsAre(50, 51, 0, 1, 20, 21));
  EXPECT_THAT(pooled, ElementsAre(25, 26, 0, 0, 20, 21));
  EXPECT_THAT(weighted, ElementsAre(50, 54, 0, 0, 40, 42));
}

TEST(EmbeddingTablesTest, TheFirstColumnsAreThoseOfWholeRows) {
  constexpr int64_t kColumns = 13;
  constexpr int64_t kRows = 100;
  // More than a task has.
  constexpr int64_t kSamples = 9000;
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), -600.0f);
  const std::string path =
      WriteRows("columns", Encoding::kInt4, kColumns, values, 64);
  const auto tables = EmbeddingTables::Open({{.name = "items",
                                              .rows = kRows,
                                              .columns = kColumns,
                                              .encoding = Encoding::kInt4,
                                              .parts = {{path, 0, kRows, 64}}}},
                                            0);
  ASSERT_TRUE(tables) << tables.error().message;
  std::vector<int64_t> ids(2 * kSamples);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * i % kRows);
  }
  ThreadExecutor executor(3);
  for (const auto kind : {Request::Kind::kRows, Request::Kind::kMatrix}) {
    const int64_t samples =
        kind == Request::Kind::kRows ? 2 * kSamples : kSamples;
    std::vector<float> all(samples * kColumns);
    std::vector<float> first(samples * 5);
    const Request requests[] = {
        {.kind = kind, .ids = ids, .valency = 2, .out = all},
        {.kind = kind, .ids = ids, .valency = 2, .columns = 5, .out = first}};
    ASSERT_TRUE((*tables)->Look(requests, executor));
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t d = 0; d < 5; ++d) {
        ASSERT_EQ(first[s * 5 + d], all[s * kColumns + d]) << s << " " << d;
      }
    }
  }
}

// Sixteen samples of each number of ids, and one more: how they are sorted
// depends on it. All sums are exact.
TEST(EmbeddingTablesTest, SumsSamplesOfEverySize) {
  const auto tables = OpenSixRows();
  std::vector<int64_t> ids;
  std::vector<float> weights;
  std::vector<int64_t> splits = {0};
  std::vector<float> expected;
  std::vector<float> expected_weighted;
  for (const int64_t most : {3, 4, 5, 16, 17, 32, 60, 90, 128, 129}) {
    for (int64_t s = 0; s < (most == 129 ? 17 : 16); ++s) {
      float sums[2] = {};
      float weighted_sums[2] = {};
      for (int64_t i = 0; i < most * (s + 1) / 16; ++i) {
        const int64_t id = (s + i * i) % 6;
        const auto weight = static_cast<float>(1 + i % 3);
        ids.push_back(id);
        weights.push_back(weight);
        for (int64_t d = 0; d < 2; ++d) {
          const auto value = static_cast<float>(10 * id + d);
          sums[d] += value;
          weighted_sums[d] += weight * value;
        }
      }
      splits.push_back(std::ssize(ids));
      expected.insert(expected.end(), sums, sums + 2);
      expected_weighted.insert(expected_weighted.end(), weighted_sums,
                               weighted_sums + 2);
    }
  }
  std::vector<float> pooled(expected.size());
  std::vector<float> weighted(expected.size());
  const Request requests[] = {{.kind = Request::Kind::kSplits,
                               .ids = ids,
                               .row_splits = splits,
                               .combiner = convert::Combiner::kSum,
                               .out = pooled},
                              {.kind = Request::Kind::kSplits,
                               .ids = ids,
                               .row_splits = splits,
                               .weights = weights,
                               .combiner = convert::Combiner::kSum,
                               .out = weighted}};
  InlineExecutor executor;
  ASSERT_TRUE(tables->Look(requests, executor));
  EXPECT_EQ(pooled, expected);
  EXPECT_EQ(weighted, expected_weighted);
}

// One file over and over, in which row 7 is 64, and 1, 2, 3 behind them.
TEST(EmbeddingTablesTest, LooksUpRowsBeyondThirtyTwoBits) {
  constexpr int64_t kRowsOfFile = int64_t{1} << 26;
  constexpr int64_t kFirstOfLast = int64_t{1} << 32;
  std::vector<float> values(8);
  values[7] = 64;
  const std::string file =
      WriteRows("over_and_over", Encoding::kFloat16, 1, values, 0);
  // Sparse: the rest of it is on no disk.
  std::filesystem::resize_file(file, 2 * kRowsOfFile);
  TableDescription table = {.name = "items",
                            .rows = kFirstOfLast + 3,
                            .columns = 1,
                            .encoding = Encoding::kFloat16,
                            .parts = {}};
  for (int64_t row = 0; row < kFirstOfLast; row += kRowsOfFile) {
    table.parts.push_back({file, row, kRowsOfFile, 0});
  }
  table.parts.push_back({WriteRows("last", Encoding::kFloat16, 1, {1, 2, 3}, 0),
                         kFirstOfLast, 3, 0});
  const auto tables = EmbeddingTables::Open({std::move(table)}, 3);
  ASSERT_TRUE(tables) << tables.error().message;

  const std::vector<int64_t> ids = {kFirstOfLast + 2, 7, kFirstOfLast + 2,
                                    kFirstOfLast, kRowsOfFile + 7};
  const std::vector<float> weights = {1, 2, 3, 4, 5};
  const std::vector<int64_t> splits = {0, 4, 4, 5};
  std::vector<float> weighted(3);
  std::vector<float> pooled(3);
  const Request requests[] = {{.kind = Request::Kind::kSplits,
                               .ids = ids,
                               .row_splits = splits,
                               .weights = weights,
                               .out = weighted},
                              {.kind = Request::Kind::kSplits,
                               .ids = ids,
                               .row_splits = splits,
                               .combiner = convert::Combiner::kMean,
                               .out = pooled}};
  InlineExecutor executor;
  ASSERT_TRUE((*tables)->Look(requests, executor));
  EXPECT_THAT(weighted, ElementsAre(1 * 3 + 2 * 64 + 3 * 3 + 4 * 1, 0, 5 * 64));
  EXPECT_THAT(pooled, ElementsAre((3 + 64 + 3 + 1) / 4.0f, 0, 64));
}

TEST(EmbeddingTablesTest, WrongRequestsAreErrors) {
  const auto tables = OpenSixRows();
  const std::vector<int64_t> ids = {5, 0, 6};
  const std::vector<int32_t> negative = {5, -1};
  const std::vector<int64_t> falling = {0, 3, 1, 3};
  const std::vector<int64_t> short_splits = {0, 2};
  const std::vector<float> weights = {1, 0, INFINITY};
  std::vector<float> out(6);
  InlineExecutor executor;
  const auto error = [&tables, &executor](const Request& request) {
    const auto result = tables->Look({&request, 1}, executor);
    return result ? std::string() : result.error().message;
  };
  EXPECT_THAT(error({.table = 1, .ids = ids, .out = out}),
              HasSubstr("no table number 1"));
  EXPECT_THAT(error({.ids = ids, .out = out}),
              HasSubstr("Table 'items': id 6 at position 2"));
  EXPECT_THAT(error({.ids = negative, .out = std::span(out).first(4)}),
              HasSubstr("id -1 at position 1"));
  EXPECT_THAT(error({.ids = ids, .out = std::span(out).first(4)}),
              HasSubstr("out has 4 values, expected 3 rows of 2"));
  for (const int64_t columns : {0, 3}) {
    EXPECT_THAT(
        error({.ids = ids, .columns = columns, .out = out}),
        HasSubstr(StrCat("Table 'items': ", columns,
                         " columns are asked for, expected from 1 to its 2")));
  }
  EXPECT_THAT(error({.kind = Request::Kind::kSplits,
                     .ids = ids,
                     .row_splits = falling,
                     .out = out}),
              HasSubstr("row_splits[2] is 1 after 3"));
  EXPECT_THAT(error({.kind = Request::Kind::kSplits,
                     .ids = ids,
                     .row_splits = short_splits,
                     .out = std::span(out).first(2)}),
              HasSubstr("from 0 to 2 in 2 numbers, expected them to go from 0 "
                        "to 3"));
  EXPECT_THAT(error({.kind = Request::Kind::kMatrix,
                     .ids = ids,
                     .valency = 2,
                     .out = out}),
              HasSubstr("3 ids are no samples of 2 each"));
  EXPECT_THAT(error({.kind = Request::Kind::kMatrix,
                     .ids = ids,
                     .weights = weights,
                     .out = out}),
              HasSubstr("weight inf at position 2 is not finite"));
  // Squares that float32 cannot hold: the sample would be zeros.
  const std::vector<int64_t> rows = {5, 0, 1, 2};
  const std::vector<int64_t> pairs = {0, 2, 4};
  const std::vector<float> large = {1, 2, 1e20f, 1e20f};
  Request divided{.kind = Request::Kind::kSplits,
                  .ids = rows,
                  .row_splits = pairs,
                  .weights = large,
                  .combiner = convert::Combiner::kSqrtn,
                  .out = std::span(out).first(4)};
  EXPECT_THAT(error(divided),
              HasSubstr("sample 1 has weights that the combiner divides by "
                        "more than float32 can hold"));
  divided.combiner = convert::Combiner::kMean;
  EXPECT_EQ(error(divided), "");
}

TEST(EmbeddingTablesTest, IdsOutOfRangeMayBeZeros) {
  const auto tables = OpenSixRows(EmbeddingTables::OutOfRange::kZero);
  const std::vector<int64_t> ids = {4, int64_t{1} << 60, -3};
  std::vector<float> rows(6, -1);
  std::vector<float> pooled(2, -1);
  const Request requests[] = {{.ids = ids, .out = rows},
                              {.kind = Request::Kind::kMatrix,
                               .ids = ids,
                               .valency = 3,
                               .combiner = convert::Combiner::kSum,
                               .out = pooled}};
  InlineExecutor executor;
  ASSERT_TRUE(tables->Look(requests, executor));
  EXPECT_THAT(rows, ElementsAre(40, 41, 0, 0, 0, 0));
  EXPECT_THAT(pooled, ElementsAre(40, 41));
}

TEST_P(AnyMemoryTest, AppliesChangesOrNone) {
  const auto tables =
      OpenSixRows(EmbeddingTables::OutOfRange::kError, copier());
  InlineExecutor executor;
  const auto rows = [&tables, &executor] {
    std::vector<int64_t> ids(6);
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> out(12);
    const Request request = {.ids = ids, .out = out};
    EXPECT_TRUE(tables->Look({&request, 1}, executor));
    return out;
  };
  const auto values = Encoded(Encoding::kFloat32, 2, {-1, -2, -3, -4});
  const std::vector<int64_t> changed = {1, 4};
  const std::vector<int64_t> deleted = {5};
  for (const std::vector<int64_t>& wrong :
       std::vector<std::vector<int64_t>>{{4, 1}, {1, 1}, {-1, 1}, {1, 6}}) {
    const RowChanges changes = {.rows = wrong, .values = values};
    EXPECT_THAT(tables->Apply({&changes, 1}, 4, executor).error().message,
                HasSubstr("expected ascending rows below 6"));
    const RowChanges other = {.rows = {}, .values = {}, .deleted = wrong};
    EXPECT_THAT(tables->Apply({&other, 1}, 4, executor).error().message,
                HasSubstr("deleted row"));
  }
  const RowChanges cut = {.rows = changed,
                          .values = std::span(values).first(15)};
  EXPECT_THAT(tables->Apply({&cut, 1}, 4, executor).error().message,
              HasSubstr("2 changed rows have 15 bytes, expected 8 each"));
  EXPECT_THAT(rows(),
              ElementsAre(0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51));
  EXPECT_EQ(tables->version(), 3);

  const RowChanges changes = {
      .rows = changed, .values = values, .deleted = deleted};
  ASSERT_TRUE(tables->Apply({&changes, 1}, 4, executor));
  EXPECT_THAT(rows(), ElementsAre(0, 1, -1, -2, 20, 21, 30, 31, -3, -4, 0, 0));
  EXPECT_EQ(tables->version(), 4);

  const std::span<const int64_t> both(changed);
  const std::span<const std::byte> of_both(values);
  RowChanges pieces[] = {
      {.rows = both.last(1), .values = of_both.last(8)},
      {.rows = both.first(1), .values = of_both.first(8), .deleted = deleted}};
  EXPECT_THAT(tables->Apply(pieces, 5, executor).error().message,
              HasSubstr("changed row 1 follows row 4"));
  std::swap(pieces[0].rows, pieces[1].rows);
  ASSERT_TRUE(tables->Apply(pieces, 5, executor));
  EXPECT_THAT(rows(), ElementsAre(0, 1, -3, -4, 20, 21, 30, 31, -1, -2, 0, 0));
  EXPECT_EQ(tables->version(), 5);
  // The files are as they were.
  EXPECT_EQ(OpenError(SixRows()), "");
}

// Version v has v in every column of every row of two tables.
TEST_P(AnyMemoryTest, ReadersSeeOneVersionWhileItChanges) {
  constexpr int64_t kRows = 2000;
  constexpr int64_t kColumns = 20;
  std::vector<TableDescription> descriptions;
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFloat32}) {
    const std::string name(kEncodingNames[static_cast<int>(encoding)]);
    const std::string path =
        WriteRows(name, encoding, kColumns,
                  std::vector<float>(kRows * kColumns, 0.0f), 64);
    descriptions.push_back({.name = name,
                            .rows = kRows,
                            .columns = kColumns,
                            .encoding = encoding,
                            .combiner = convert::Combiner::kSum,
                            .parts = {{path, 0, kRows, 64}}});
  }
  const auto tables =
      *EmbeddingTables::Open(std::move(descriptions), 0,
                             EmbeddingTables::OutOfRange::kError, copier());
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  std::atomic<bool> is_done = false;
  std::atomic<int64_t> num_wrong = 0;
  std::atomic<int64_t> num_looks = 0;
  const auto read = [&tables, &all, &is_done, &num_wrong, &num_looks] {
    InlineExecutor executor;
    std::vector<float> out(2 * kRows * kColumns);
    const std::span<float> halves(out);
    const Request requests[] = {
        {.table = 0, .ids = all, .out = halves.first(kRows * kColumns)},
        {.table = 1,
         .kind = Request::Kind::kMatrix,
         .ids = all,
         .out = halves.last(kRows * kColumns)}};
    while (!is_done) {
      if (!tables->Look(requests, executor)) ++num_wrong;
      for (const float value : out) num_wrong += value != out.front();
      ++num_looks;
      // Two calls that hold the version.
      const auto held = tables->Hold();
      const int64_t version = tables->version();
      if (!tables->LookHeld({requests, 1}, executor)) ++num_wrong;
      if (!tables->LookHeld({requests + 1, 1}, executor)) ++num_wrong;
      for (const float value : out) {
        num_wrong += value != static_cast<float>(version);
      }
    }
  };
  std::vector<std::jthread> readers;
  for (int i = 0; i < 4; ++i) readers.emplace_back(read);
  ThreadExecutor executor(2);
  for (int64_t version = 1; version <= 20; ++version) {
    const std::vector<float> values(kRows * kColumns,
                                    static_cast<float>(version));
    const auto int8 = Encoded(Encoding::kInt8, kColumns, values);
    const auto float32 = Encoded(Encoding::kFloat32, kColumns, values);
    const RowChanges changes[] = {{.table = 0, .rows = all, .values = int8},
                                  {.table = 1, .rows = all, .values = float32}};
    ASSERT_TRUE(tables->Apply(changes, version, executor));
  }
  const int64_t looks_so_far = num_looks;
  while (num_looks == looks_so_far) std::this_thread::yield();
  is_done = true;
  readers.clear();
  EXPECT_EQ(num_wrong, 0);
}

TEST(EmbeddingTablesTest, BitsDoNotDependOnThreads) {
  constexpr int64_t kRows = 3000;
  constexpr int64_t kColumns = 11;
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 1000) / 999 - 0.5f;
  }
  const std::string path =
      WriteRows("random", Encoding::kInt8, kColumns, values, 64);
  const auto tables =
      *EmbeddingTables::Open({{.name = "items",
                               .rows = kRows,
                               .columns = kColumns,
                               .encoding = Encoding::kInt8,
                               .combiner = convert::Combiner::kSqrtn,
                               .parts = {{path, 0, kRows, 64}}}},
                             0);
  std::vector<int64_t> ids;
  std::vector<int64_t> splits = {0};
  for (int64_t s = 0; s < 2000; ++s) {
    for (int64_t i = 0; i < s * s % 30 + (s == 77 ? 5000 : 0); ++i) {
      ids.push_back((s * 31 + i * i * 17) % kRows);
    }
    splits.push_back(std::ssize(ids));
  }
  std::vector<std::vector<float>> results;
  for (const int num_threads : {1, 2, 5}) {
    results.emplace_back(2000 * kColumns);
    const Request request = {.kind = Request::Kind::kSplits,
                             .ids = ids,
                             .row_splits = splits,
                             .out = results.back()};
    ThreadExecutor executor(num_threads);
    ASSERT_TRUE(tables->Look({&request, 1}, executor));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace jte::serving
