// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file with rows after `offset` other bytes.
std::string WriteRows(const std::string& name, Encoding encoding,
                      int64_t columns, const std::vector<float>& values,
                      int64_t offset) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream file(path, std::ios::binary);
  file << std::string(offset, 'x');
  std::string row(RowBytes(encoding, columns), '\0');
  for (size_t i = 0; i < values.size(); i += columns) {
    EncodeRow(encoding, std::span(values).subspan(i, columns),
              reinterpret_cast<std::byte*>(row.data()));
    file << row;
  }
  return path;
}

std::vector<std::byte> Encoded(Encoding encoding, int64_t columns,
                               const std::vector<float>& values) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < values.size(); i += columns) {
    bytes.resize(bytes.size() + RowBytes(encoding, columns));
    EncodeRow(encoding, std::span(values).subspan(i, columns),
              bytes.data() + bytes.size() - RowBytes(encoding, columns));
  }
  return bytes;
}

// 6 rows of 2 columns, (10 r, 10 r + 1), in two files.
TableDescription SixRows() {
  const std::string first =
      WriteRows("first", Encoding::kFloat32, 2, {0, 1, 10, 11}, 64);
  const std::string second = WriteRows("second", Encoding::kFloat32, 2,
                                       {20, 21, 30, 31, 40, 41, 50, 51}, 4160);
  return {.name = "items",
          .rows = 6,
          .columns = 2,
          .encoding = Encoding::kFloat32,
          .combiner = convert::Combiner::kMean,
          .parts = {{first, 0, 2, 64}, {second, 2, 4, 4160}}};
}

std::unique_ptr<EmbeddingTables> OpenSixRows(
    EmbeddingTables::OutOfRange out_of_range =
        EmbeddingTables::OutOfRange::kError,
    Executor* copier = nullptr) {
  auto tables = EmbeddingTables::Open({SixRows()}, 3, out_of_range, copier);
  EXPECT_TRUE(tables) << tables.error().message;
  return *std::move(tables);
}

std::string OpenError(TableDescription table, Executor* copier = nullptr) {
  const auto tables = EmbeddingTables::Open(
      {std::move(table)}, 0, EmbeddingTables::OutOfRange::kError, copier);
  return tables ? "" : tables.error().message;
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

// Notes how many tasks it has each time.
class CountingExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    counts_.push_back(n);
    InlineExecutor().ParallelFor(n, task);
  }
  const std::vector<int64_t>& counts() const { return counts_; }

 private:
  std::vector<int64_t> counts_;
};

// Whether new memory of this test can be in huge pages, and the system tells.
bool HasHugePages() {
  std::vector<std::byte> memory(3 * kHugePageBytes);
  AllowHugePages(memory);
  std::ranges::fill(memory, std::byte{1});
  return IsInHugePage(&memory[kHugePageBytes + kHugePageBytes / 2]);
}

// In two files, the larger ones of several tasks.
TEST(EmbeddingTablesTest, CopiesHaveTheBytesOfTheFilesAndDoNotNeedThem) {
  constexpr int64_t kRows = 70'000;
  constexpr int64_t kFirst = 7;  // rows
  constexpr int64_t kColumns = 64;
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 1000) / 999 - 0.5f;
  }
  for (const Encoding encoding :
       {Encoding::kFloat32, Encoding::kBfloat16, Encoding::kFloat16,
        Encoding::kInt8, Encoding::kInt4}) {
    SCOPED_TRACE(kEncodingNames[static_cast<int>(encoding)]);
    const auto begin = values.begin();
    const auto middle = begin + kFirst * kColumns;
    const std::string first =
        WriteRows("copied_1", encoding, kColumns, {begin, middle}, 64);
    const std::string second =
        WriteRows("copied_2", encoding, kColumns, {middle, values.end()}, 4160);
    const TableDescription table = {
        .name = "items",
        .rows = kRows,
        .columns = kColumns,
        .encoding = encoding,
        .parts = {{first, 0, kFirst, 64},
                  {second, kFirst, kRows - kFirst, 4160}}};
    ThreadExecutor copier(3);
    const auto mapped = EmbeddingTables::Open({table}, 0);
    const auto copied = EmbeddingTables::Open(
        {table}, 0, EmbeddingTables::OutOfRange::kError, &copier);
    ASSERT_TRUE(mapped) << mapped.error().message;
    ASSERT_TRUE(copied) << copied.error().message;
    const auto bytes = Encoded(encoding, kColumns, values);
    const auto has_them = [&bytes](const EmbeddingTables& tables) {
      const MappedTable& rows = tables.tables()[0];
      for (int64_t row = 0; row < kRows; ++row) {
        if (std::memcmp(rows.Row(row), &bytes[row * rows.row_bytes()],
                        rows.row_bytes()) != 0) {
          return false;
        }
      }
      return true;
    };
    EXPECT_TRUE(has_them(**mapped));
    std::filesystem::resize_file(first, 0);
    std::filesystem::resize_file(second, 0);
    EXPECT_TRUE(has_them(**copied));
    const std::byte* const row = (*copied)->tables()[0].Row(0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(row) % kHugePageBytes, 0);
    if (HasHugePages()) {
      EXPECT_TRUE(IsInHugePage(row));
    }
  }
}

// Files end anywhere: within a page, a huge page, and what one task copies.
TEST(EmbeddingTablesTest, CopiesOfSeveralFilesAreOnePieceOfMemory) {
  constexpr int64_t kColumns = 15;
  constexpr int64_t kRowBytes = 4 * kColumns;
  constexpr int64_t kRowsOfFiles[] = {7, 300'001, 0, 100'003};
  constexpr int64_t kRows = 7 + 300'001 + 100'003;
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7919 % 1000003);
  }
  TableDescription table = {.name = "items",
                            .rows = kRows,
                            .columns = kColumns,
                            .encoding = Encoding::kFloat32,
                            .parts = {}};
  int64_t first = 0;
  for (const int64_t rows : kRowsOfFiles) {
    const auto begin = values.begin() + first * kColumns;
    const int64_t offset = 64 + first % 1000;
    table.parts.push_back(
        {WriteRows(StrCat("piece_", table.parts.size()), Encoding::kFloat32,
                   kColumns, {begin, begin + rows * kColumns}, offset),
         first, rows, offset});
    first += rows;
  }
  CountingExecutor copier;
  const auto copied = EmbeddingTables::Open(
      {table}, 0, EmbeddingTables::OutOfRange::kError, &copier);
  ASSERT_TRUE(copied) << copied.error().message;
  const MappedTable& rows = (*copied)->tables()[0];
  for (const int64_t seam : {6, 7, 8, 300'007, 300'008, 300'009}) {
    EXPECT_EQ(rows.Row(seam), rows.Row(0) + seam * kRowBytes);
  }
  EXPECT_EQ(std::memcmp(rows.Row(0), values.data(), kRows * kRowBytes), 0);
  // Of all files at once: 1 of the first, 3 and 1 of the others.
  EXPECT_THAT(copier.counts(), ElementsAre(5));
}

// Nor are there a huge page for each of many small tables.
TEST(EmbeddingTablesTest, ACopyTakesNoMoreMemoryThanItsRows) {
  const auto virtual_bytes = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  constexpr int64_t kTables = 100;
  constexpr auto kHugePage = static_cast<int64_t>(kHugePageBytes);
  for (const int64_t num_rows : {2, 300'000}) {
    const std::string path =
        WriteRows("many", Encoding::kFloat32, 2, {0, 1}, 0);
    std::filesystem::resize_file(path, 8 * num_rows);
    const TableDescription table = {.name = "items",
                                    .rows = num_rows,
                                    .columns = 2,
                                    .encoding = Encoding::kFloat32,
                                    .parts = {{path, 0, num_rows, 0}}};
    const int64_t before = virtual_bytes();
    InlineExecutor copier;
    const auto tables =
        EmbeddingTables::Open(std::vector<TableDescription>(kTables, table), 0,
                              EmbeddingTables::OutOfRange::kError, &copier);
    ASSERT_TRUE(tables) << tables.error().message;
    EXPECT_LT(virtual_bytes() - before,
              kTables * (8 * num_rows + kHugePage / 2));
  }
}

// Has no memory for its tasks.
class FullExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void ParallelFor(int64_t, const std::function<void(int64_t)>&) override {
    throw std::bad_alloc();
  }
};

TEST(EmbeddingTablesTest, NoMemoryToOpenATableIsAnErrorThatNamesIt) {
  const TableDescription table = SixRows();
  FullExecutor copier;
  const auto tables = EmbeddingTables::Open(
      {table}, 0, EmbeddingTables::OutOfRange::kError, &copier);
  ASSERT_FALSE(tables);
  EXPECT_EQ(tables.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(tables.error().message,
              HasSubstr("Table 'items': there is no memory to open " +
                        table.parts[0].path + " and 1 more"));
}

// Cuts a file off before its first task.
class CuttingExecutor final : public Executor {
 public:
  CuttingExecutor(std::string path, int64_t size)
      : path_(std::move(path)), size_(size) {}

  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    std::filesystem::resize_file(path_, size_);
    InlineExecutor().ParallelFor(n, task);
  }

 private:
  const std::string path_;
  const int64_t size_;
};

TEST(EmbeddingTablesTest, AFileThatIsCutOffWhileItIsCopiedIsAnError) {
  const TableDescription table = SixRows();
  CuttingExecutor copier(table.parts[0].path, 79);
  EXPECT_THAT(OpenError(table, &copier),
              HasSubstr("first: it was cut off at byte 79 while it was read, "
                        "expected rows 0 to 2 of table 'items'"));
}

TEST(EmbeddingTablesTest, NoMemoryForACopyIsAnError) {
  int overcommit = 1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit == 1) GTEST_SKIP() << "This system promises any memory.";
  constexpr int64_t kBytes = int64_t{15} << 40;
  TableDescription table = SixRows();
  const std::string path =
      WriteRows("no_memory", Encoding::kFloat32, 2, {0, 1}, 0);
  std::error_code error;
  std::filesystem::resize_file(path, kBytes, error);  // Sparse.
  if (error) GTEST_SKIP() << "This file system has no such files.";
  table.rows = kBytes / 8;
  table.parts = {{path, 0, table.rows, 0}};
#if !defined(__SANITIZE_THREAD__)  // which leaves less room for addresses
  EXPECT_EQ(OpenError(table), "");
#endif
  InlineExecutor copier;
  const auto tables = EmbeddingTables::Open(
      {table}, 0, EmbeddingTables::OutOfRange::kError, &copier);
  ASSERT_FALSE(tables);
  EXPECT_EQ(tables.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(tables.error().message,
              HasSubstr("Table 'items': there is no memory for a copy of "
                        "16492674416640 bytes of " +
                        path));
}

TEST(EmbeddingTablesTest, WrongFilesAreErrors) {
  EXPECT_EQ(OpenError(SixRows()), "");
  TableDescription table = SixRows();
  table.parts[1].path += ".gone";
  EXPECT_THAT(OpenError(table), HasSubstr("second.gone: No such file"));
  table = SixRows();
  table.parts[1].offset += 8;
  EXPECT_THAT(OpenError(table), HasSubstr("has 4192 bytes, expected 4 rows of "
                                          "8 bytes from byte 4168 on"));
  table.parts[1].offset = INT64_MAX;
  EXPECT_THAT(OpenError(table), HasSubstr("has 4192 bytes"));
  table.parts[1].offset = -8;
  EXPECT_THAT(OpenError(table), HasSubstr("from byte -8 on"));
  table = SixRows();
  table.parts[1].first_row = 3;
  EXPECT_THAT(OpenError(table), HasSubstr("expected those from 2 on"));
  table = SixRows();
  table.parts[1].rows = INT64_MAX;
  EXPECT_THAT(OpenError(table), HasSubstr("up to row 6"));
  table = SixRows();
  table.parts.pop_back();
  EXPECT_THAT(OpenError(table), HasSubstr("have 2 rows, expected 6"));
  table = SixRows();
  table.columns = 0;
  EXPECT_THAT(OpenError(table), HasSubstr("0 columns"));
  table = SixRows();
  table.rows = table.parts[1].rows = int64_t{1} << 62;
  table.parts.erase(table.parts.begin());
  table.parts[0].first_row = 0;
  EXPECT_THAT(OpenError(table), HasSubstr("has 4192 bytes"));
}

// Of every file that cannot be read: those that are served are of other hands.
TEST_P(AnyMemoryTest, FilesThatCannotBeReadAreInvalid) {
  const auto error = [this](TableDescription table) {
    const auto tables = EmbeddingTables::Open(
        {std::move(table)}, 0, EmbeddingTables::OutOfRange::kError, copier());
    if (tables) return std::string("none");
    EXPECT_EQ(tables.error().code, ErrorCode::kInvalidArgument);
    return tables.error().message;
  };
  TableDescription table = SixRows();
  table.parts[1].path += ".gone";
  EXPECT_THAT(error(table), HasSubstr("Table 'items': cannot open " +
                                      table.parts[1].path + ": No such file"));
  const std::string directory = ::testing::TempDir() + "no_file";
  std::filesystem::create_directories(directory + "/which_has_a_size");
  table = {.name = "items",
           .rows = 1,
           .columns = 1,
           .encoding = Encoding::kFloat32,
           .parts = {{directory, 0, 1, 0}}};
  EXPECT_THAT(
      error(table),
      HasSubstr(GetParam()
                    ? directory + ": cannot be read (Is a directory), expected "
                                  "rows 0 to 1 of table 'items'"
                    : "Table 'items': cannot map 4 bytes of " + directory));
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
