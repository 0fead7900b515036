// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/thread_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/testing/six_rows.h"

namespace jte::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
TEST(MappedTableTest, CopiesHaveTheBytesOfTheFilesAndDoNotNeedThem) {
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
TEST(MappedTableTest, CopiesOfSeveralFilesAreOnePieceOfMemory) {
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
TEST(MappedTableTest, ACopyTakesNoMoreMemoryThanItsRows) {
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

TEST(MappedTableTest, NoMemoryToOpenATableIsAnErrorThatNamesIt) {
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

TEST(MappedTableTest, AFileThatIsCutOffWhileItIsCopiedIsAnError) {
  const TableDescription table = SixRows();
  CuttingExecutor copier(table.parts[0].path, 79);
  EXPECT_THAT(OpenError(table, &copier),
              HasSubstr("first: it was cut off at byte 79 while it was read, "
                        "expected rows 0 to 2 of table 'items'"));
}

TEST(MappedTableTest, NoMemoryForACopyIsAnError) {
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

TEST(MappedTableTest, WrongFilesAreErrors) {
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
TEST(MappedTableTest, FilesThatCannotBeReadAreInvalid) {
  const auto error = [](const TableDescription& table, Executor* copier) {
    const auto tables = EmbeddingTables::Open(
        {table}, 0, EmbeddingTables::OutOfRange::kError, copier);
    if (tables) return std::string("none");
    EXPECT_EQ(tables.error().code, ErrorCode::kInvalidArgument);
    return tables.error().message;
  };
  InlineExecutor copier;
  TableDescription gone = SixRows();
  gone.parts[1].path += ".gone";
  for (Executor* const executor :
       {static_cast<Executor*>(nullptr), static_cast<Executor*>(&copier)}) {
    EXPECT_THAT(error(gone, executor),
                HasSubstr("Table 'items': cannot open " + gone.parts[1].path +
                          ": No such file"));
  }
  const std::string directory = ::testing::TempDir() + "no_file";
  std::filesystem::create_directories(directory + "/which_has_a_size");
  const TableDescription no_file = {.name = "items",
                                    .rows = 1,
                                    .columns = 1,
                                    .encoding = Encoding::kFloat32,
                                    .parts = {{directory, 0, 1, 0}}};
  EXPECT_THAT(error(no_file, nullptr),
              HasSubstr("Table 'items': cannot map 4 bytes of " + directory));
  EXPECT_THAT(error(no_file, &copier),
              HasSubstr(directory + ": cannot be read (Is a directory), "
                                    "expected rows 0 to 1 of table 'items'"));
}

}  // namespace
}  // namespace jte::serving
