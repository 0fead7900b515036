// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Directories of versions, written here from the page on the format: what
// opens, what refreshes, and that whatever is damaged is an error that names
// it.

#include "jax_tpu_embedding/sparsecore/cc/serving/served_tables.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/failing_allocation.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/crc32.h"

namespace jte::serving {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Read(const fs::path& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(content).str();
}

void Write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string Checksum(const std::string& content) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x",
                Crc32(std::as_bytes(std::span(content))));
  return text;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(T)};
}

// A tensor: name, type and shape as JSON, bytes.
struct Tensor {
  std::string name, type, shape, bytes;
};

class ServedTablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::path(::testing::TempDir()) /
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }

  fs::path VersionPath(int number) const {
    return directory_ / ("v00000" + std::to_string(number));
  }

  // Writes a file of safetensors; its entry, of `rows` rows that the last
  // tensor has.
  std::string WriteFile(int number, const std::string& name,
                        const std::vector<Tensor>& tensors, int first_row,
                        int rows) {
    std::string header = "{", data;
    size_t offset = 0;
    for (const Tensor& tensor : tensors) {
      offset = data.size();
      data += tensor.bytes;
      header += StrCat(header == "{" ? "" : ", ", "\"", tensor.name,
                       "\": {\"dtype\": \"", tensor.type,
                       "\", \"shape\": ", tensor.shape, ", \"data_offsets\": [",
                       offset, ", ", data.size(), "]}");
    }
    header += "}";
    header += std::string((64 - (8 + header.size()) % 64) % 64, ' ');
    const std::string content =
        Bytes<uint64_t>({header.size()}) + header + data;
    Write(VersionPath(number) / name, content);
    return StrCat("{\"name\": \"", name, "\", \"first_row\": ", first_row,
                  ", \"rows\": ", rows,
                  ", \"offset\": ", 8 + header.size() + offset,
                  ", \"bytes\": ", content.size(), ", \"crc32\": [\"",
                  Checksum(content), "\"]}");
  }

  std::string TableEntry(const std::string& more, const std::string& files) {
    return StrCat(
        "\"it\\u00e9ms\": {\"rows\": 4, \"columns\": 2, \"row_bytes\": 8, "
        "\"encoding\": \"float32\", \"combiner\": \"mean\", \"max_error\": "
        "0.0, "
        "\"rms_error\": 1.5e-3, ",
        more, "\"files\": [", files, "]}");
  }

  void WriteManifest(int number, const std::string& kind,
                     const std::string& table, const std::string& run = "5a") {
    SetManifest(
        number,
        StrCat("{\"format\": \"jax_tpu_embedding.tables\", \"format_version\": "
               "1, \"kind\": \"",
               kind, "\", ",
               kind == "full" ? ""
                              : StrCat("\"base\": {\"version\": ", number - 1,
                                       ", \"manifest_crc32\": \"",
                                       checksums_[number - 1], "\"}, "),
               "\"version\": ", number, ", \"run\": \"", run,
               "\", \"step\": null, \"tables\": {", table,
               "}, \"features\": {\"clicked\": {\"table\": "
               "\"it\\u00e9ms\"}}}"));
  }

  // Makes it current.
  void SetManifest(int number, const std::string& content) {
    Write(VersionPath(number) / "manifest.json", content);
    checksums_[number] = Checksum(content);
    Write(directory_ / "CURRENT.new",
          StrCat(number, " v00000", number, " ", checksums_[number], "\n"));
    fs::rename(directory_ / "CURRENT.new", directory_ / "CURRENT");
  }

  // Rows (10 r, 10 r + 1), in two files.
  void WriteFull(int number) {
    fs::create_directories(VersionPath(number));
    const std::string files =
        WriteFile(number, "items-1",
                  {{"itéms", "F32", "[1, 2]", Bytes<float>({0, 1})}}, 0, 1) +
        ", " +
        WriteFile(number, "items-2",
                  {{"itéms", "F32", "[3, 2]",
                    Bytes<float>({10, 11, 20, 21, 30, 31})}},
                  1, 3);
    WriteManifest(number, "full", TableEntry("\"deleted_rows\": 0, ", files));
  }

  // Rows 1 and 3 are (-number, number) and row 2 is deleted; in two files.
  void WriteDelta(int number, const std::string& run = "5a") {
    fs::create_directories(VersionPath(number));
    const float value = static_cast<float>(number);
    const std::string values = Bytes<float>({-value, value});
    const std::string files =
        WriteFile(number, "delta-1",
                  {{"itéms.rows", "I64", "[1]", Bytes<int64_t>({1})},
                   {"itéms.deleted", "I64", "[1]", Bytes<int64_t>({2})},
                   {"itéms.values", "F32", "[1, 2]", values}},
                  0, 1) +
        ", " +
        WriteFile(number, "delta-2",
                  {{"itéms.rows", "I64", "[1]", Bytes<int64_t>({3})},
                   {"itéms.deleted", "I64", "[0]", ""},
                   {"itéms.values", "F32", "[1, 2]", values}},
                  0, 1);
    WriteManifest(
        number, "delta",
        TableEntry("\"changed_rows\": 2, \"deleted_rows\": 1, ", files), run);
  }

  std::unique_ptr<ServedTables> Open(bool verify = false) {
    auto served = ServedTables::Open(directory_, {.verify = verify}, executor_);
    EXPECT_TRUE(served) << served.error().message;
    return served ? *std::move(served) : nullptr;
  }

  std::string OpenError(bool verify = false) {
    const auto served =
        ServedTables::Open(directory_, {.verify = verify}, executor_);
    return served ? "" : served.error().message;
  }

  std::vector<float> Rows(const ServedTables& served) {
    const auto now = served.Now();
    const std::vector<int64_t> ids = {0, 1, 2, 3};
    std::vector<float> out(8);
    const auto clicked = now->Feature("clicked");
    EXPECT_TRUE(clicked) << clicked.error().message;
    EXPECT_EQ(clicked->columns, 2);
    const Request request = {.table = clicked->table, .ids = ids, .out = out};
    EXPECT_TRUE(now->rows->Look({&request, 1}, executor_));
    return out;
  }

  // Puts another text in the place of one that is there.
  static std::string Edited(std::string content, const std::string& before,
                            const std::string& after) {
    const size_t at = content.find(before);
    EXPECT_NE(at, content.npos) << before;
    return content.replace(at, before.size(), after);
  }

  // What another text in a manifest makes of opening: the error, or why it did
  // not get to the current version.
  std::string ErrorWith(const std::string& before, const std::string& after,
                        int number = 0) {
    const std::string content = Read(VersionPath(number) / "manifest.json");
    SetManifest(number, Edited(content, before, after));
    const auto served = ServedTables::Open(directory_, {}, executor_);
    SetManifest(number, content);
    return served ? (*served)->Problem() : served.error().message;
  }

  fs::path directory_;
  std::map<int, std::string> checksums_;
  InlineExecutor executor_;
};

TEST_F(ServedTablesTest, OpensLooksUpAndRefreshes) {
  WriteFull(0);
  const auto served = Open(/*verify=*/true);
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
  EXPECT_EQ(served->Now()->rows->version(), 0);
  EXPECT_EQ(served->Refresh(executor_), false);

  // Two deltas at once, in place.
  const auto before = served->Now();
  WriteDelta(1);
  WriteDelta(2);
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, -2, 2, 0, 0, -2, 2));
  EXPECT_EQ(served->Now(), before);
  EXPECT_EQ(before->rows->version(), 2);
  EXPECT_THAT(Rows(*Open()), ElementsAre(0, 1, -2, 2, 0, 0, -2, 2));

  // A full version takes their place; who has the old one keeps it.
  WriteFull(3);
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
  EXPECT_EQ(before->rows->version(), 2);
  EXPECT_EQ(served->Problem(), "");
}

// Does something else before its first work.
class BusyExecutor final : public Executor {
 public:
  explicit BusyExecutor(std::function<void()> something)
      : something_(std::move(something)) {}

  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n,
                   const std::function<void(int64_t)>& task) override {
    if (const auto something = std::exchange(something_, nullptr)) something();
    InlineExecutor().ParallelFor(n, task);
  }

 private:
  std::function<void()> something_;
};

TEST_F(ServedTablesTest, CopiesChangeInPlaceAndDoNotNeedFiles) {
  const auto cut_files = [this](int number) {
    fs::resize_file(VersionPath(number) / "items-1", 0);
    fs::resize_file(VersionPath(number) / "items-2", 0);
  };
  WriteFull(0);
  const auto served =
      ServedTables::Open(directory_, {.copy_to_huge_pages = true}, executor_);
  ASSERT_TRUE(served) << served.error().message;
  cut_files(0);
  EXPECT_THAT(Rows(**served), ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
  const auto before = (*served)->Now();
  WriteDelta(1);
  EXPECT_EQ((*served)->Refresh(executor_), true);
  EXPECT_THAT(Rows(**served), ElementsAre(0, 1, -1, 1, 0, 0, -1, 1));
  EXPECT_EQ((*served)->Now(), before);

  // A full version that is cut off while it is read is not taken over.
  WriteFull(2);
  BusyExecutor cutting([&cut_files] { cut_files(2); });
  EXPECT_THAT((*served)->Refresh(cutting).error().message,
              HasSubstr("items-1: it was cut off"));
  EXPECT_THAT(Rows(**served), ElementsAre(0, 1, -1, 1, 0, 0, -1, 1));
  WriteFull(2);
  EXPECT_EQ((*served)->Refresh(executor_), true);
  cut_files(2);
  EXPECT_THAT(Rows(**served), ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
}

TEST_F(ServedTablesTest, NamesThatAreNotThereAreErrors) {
  WriteFull(0);
  const auto now = Open()->Now();
  EXPECT_EQ(now->Table("itéms"), 0);
  EXPECT_THAT(now->Table("users").error().message,
              AllOf(HasSubstr("no table 'users'"), HasSubstr("'itéms'")));
  EXPECT_THAT(now->Feature("liked").error().message,
              AllOf(HasSubstr("no feature 'liked'"), HasSubstr("'clicked'")));
}

TEST_F(ServedTablesTest, AFeatureMayHaveTheFirstColumnsOfItsTable) {
  WriteFull(0);
  const std::string manifest = Read(VersionPath(0) / "manifest.json");
  const std::string feature = "{\"table\": \"it\\u00e9ms\"";
  SetManifest(0, Edited(manifest, feature, feature + ", \"columns\": 1"));
  const auto now = Open()->Now();
  const auto clicked = now->Feature("clicked");
  ASSERT_TRUE(clicked) << clicked.error().message;
  const std::vector<int64_t> ids = {3, 0, 2};
  std::vector<float> out(3);
  const Request request = {.table = clicked->table,
                           .ids = ids,
                           .columns = clicked->columns,
                           .out = out};
  ASSERT_TRUE(now->rows->Look({&request, 1}, executor_));
  EXPECT_THAT(out, ElementsAre(30, 0, 20));
  SetManifest(0, manifest);
  EXPECT_THAT(ErrorWith(feature, feature + ", \"columns\": 3"),
              HasSubstr("has 3 columns, expected at most the 2 of table"));
  EXPECT_THAT(ErrorWith(feature, feature + ", \"columns\": 0"),
              HasSubstr("expected an integer from 1 to 2^60"));
}

TEST_F(ServedTablesTest, WhatIsNoFileIsAnErrorAndIsNotWaitedFor) {
  WriteFull(0);
  for (const char* name :
       {"v000000/items-2", "v000000/manifest.json", "CURRENT"}) {
    const fs::path path = directory_ / name;
    fs::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(OpenError(),
                HasSubstr(StrCat(path.string(), ": it is no regular file")));
  }
}

TEST_F(ServedTablesTest, ADamagedDeltaIsNotUsedAndTriedAgain) {
  WriteFull(0);
  const auto served = Open();
  WriteDelta(1);
  WriteDelta(2);
  const fs::path path = VersionPath(2) / "delta-2";
  const std::string content = Read(path);
  Write(path, content.substr(0, content.size() - 1) + "x");
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_EQ(served->Now()->rows->version(), 1);
  EXPECT_THAT(served->Problem(),
              AllOf(HasSubstr("staying at version 1, since version 2"),
                    HasSubstr("delta-2: the crc32 of its bytes")));
  EXPECT_EQ(served->Refresh(executor_), false);
  Write(path, content);
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, -2, 2, 0, 0, -2, 2));
  EXPECT_EQ(served->Problem(), "");
}

TEST_F(ServedTablesTest, ProblemsAreThoseOfTheLastRefresh) {
  WriteFull(0);
  const auto served = Open();
  WriteFull(1);
  const fs::path path = VersionPath(1) / "items-1";
  const std::string content = Read(path);
  fs::remove(path);
  const auto missing = served->Refresh(executor_);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("items-1: cannot be read"));
  EXPECT_EQ(served->Problem(), missing.error().message);

  const std::string current = Read(directory_ / "CURRENT");
  fs::remove(directory_ / "CURRENT");
  const auto no_current = served->Refresh(executor_);
  ASSERT_FALSE(no_current);
  EXPECT_THAT(no_current.error().message, HasSubstr("CURRENT"));
  EXPECT_EQ(served->Problem(), no_current.error().message);

  Write(path, content);
  Write(directory_ / "CURRENT", current);
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_EQ(served->Problem(), "");
}

TEST_F(ServedTablesTest, WhatDoesNotFollowIsNotApplied) {
  WriteFull(0);
  const auto served = Open();
  WriteDelta(1, "6b");
  EXPECT_EQ(served->Refresh(executor_), false);
  EXPECT_THAT(served->Problem(), HasSubstr("is of run 6b, and its base of"));
  WriteDelta(1);
  SetManifest(1, Edited(Read(VersionPath(1) / "manifest.json"), "mean", "sum"));
  EXPECT_EQ(served->Refresh(executor_), false);
  EXPECT_THAT(served->Problem(),
              HasSubstr("manifest.json: table 'itéms' is 4 x 2 float32, sum, "
                        "expected 4 x 2 float32, mean"));
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
  // Another full version with the number of the one that is loaded.
  const auto before = served->Now();
  SetManifest(0, Read(VersionPath(0) / "manifest.json") + "\n");
  WriteDelta(1);
  EXPECT_EQ(served->Refresh(executor_), true);
  EXPECT_NE(served->Now(), before);
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, -1, 1, 0, 0, -1, 1));
  // What is missing is an error, and the tables stay.
  WriteDelta(2);
  WriteDelta(3);
  fs::remove(VersionPath(2) / "manifest.json");
  EXPECT_THAT(served->Refresh(executor_).error().message,
              HasSubstr("v000002/manifest.json: cannot be read"));
  EXPECT_EQ(served->Now()->rows->version(), 1);
}

TEST_F(ServedTablesTest, WhatIsReplacedMeanwhileIsReadAgain) {
  WriteFull(0);
  const auto served = Open();
  WriteDelta(1);
  WriteDelta(2);
  BusyExecutor new_full([this] {
    fs::remove_all(VersionPath(2));
    WriteFull(3);
  });
  EXPECT_EQ(served->Refresh(new_full), true);
  EXPECT_EQ(served->Now()->rows->version(), 3);
  EXPECT_EQ(served->Problem(), "");

  // It goes on from the delta that was reached: no older one is needed.
  WriteDelta(4);
  WriteDelta(5);
  BusyExecutor new_delta([this] {
    fs::remove_all(VersionPath(4));
    fs::remove(VersionPath(5) / "delta-1");
    WriteDelta(6);
  });
  EXPECT_EQ(served->Refresh(new_delta), true);
  EXPECT_EQ(served->Now()->rows->version(), 4);
  EXPECT_THAT(served->Problem(),
              HasSubstr("staying at version 4, since version 5"));
}

TEST_F(ServedTablesTest, ThreadsSeeWholeVersionsWhileOthersRefresh) {
  WriteFull(0);
  const auto served = Open();
  std::atomic<bool> is_done = false;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this, &served, &is_done] {
      while (!is_done) {
        const auto refreshed = served->Refresh(executor_);
        EXPECT_TRUE(refreshed) << refreshed.error().message;
      }
    });
    threads.emplace_back([this, &served, &is_done] {
      while (!is_done) {
        const std::vector<float> rows = Rows(*served);
        const bool is_full = rows[2] > 0;
        EXPECT_EQ(rows[6], is_full ? 30 : rows[2]);
        EXPECT_EQ(rows[4], is_full ? 20 : 0);
      }
    });
  }
  for (int number = 1; number < 10; ++number) {
    if (number == 5) {
      WriteFull(number);
    } else {
      WriteDelta(number);
    }
    while (served->Now()->rows->version() != number) std::this_thread::yield();
  }
  is_done = true;
  threads.clear();
  EXPECT_THAT(Rows(*served), ElementsAre(0, 1, -9, 9, 0, 0, -9, 9));
}

TEST_F(ServedTablesTest, WithoutMemoryTheTablesStay) {
  const std::vector<float> old_rows = {0, 1, 10, 11, 20, 21, 30, 31};
  const std::vector<float> changed_rows = {0, 1, -1, 1, 0, 0, -1, 1};
  WriteFull(0);
  const std::string before = Read(directory_ / "CURRENT");
  for (const bool is_full : {false, true}) {
    is_full ? WriteFull(1) : WriteDelta(1);
    const std::string after = Read(directory_ / "CURRENT");
    const std::vector<float>& new_rows = is_full ? old_rows : changed_rows;
    int64_t num_errors = 0;
    bool has_failed = true;
    for (int64_t n = 0; has_failed; ++n) {
      Write(directory_ / "CURRENT", before);
      const auto served = Open();
      Write(directory_ / "CURRENT", after);
      Result<bool> refreshed = false;
      {
        const ScopedFailingAllocation allocation(n);
        ASSERT_NO_THROW(refreshed = served->Refresh(executor_)) << n;
        has_failed = allocation.has_failed();
      }
      if (!refreshed) {
        ++num_errors;
        EXPECT_EQ(refreshed.error().code, ErrorCode::kResourceExhausted);
        EXPECT_THAT(refreshed.error().message, HasSubstr("is no memory"));
        EXPECT_EQ(served->Problem(), refreshed.error().message);
      }
      EXPECT_THAT(Rows(*served), AnyOf(old_rows, new_rows)) << n;
      ASSERT_TRUE(served->Refresh(executor_)) << n;
      EXPECT_EQ(Rows(*served), new_rows) << n;
    }
    EXPECT_GT(num_errors, 50);
  }
}

TEST_F(ServedTablesTest, WhatIsDamagedIsAnErrorThatNamesIt) {
  EXPECT_THAT(OpenError(), HasSubstr("CURRENT: cannot be read (No such file"));
  WriteFull(0);
  EXPECT_EQ(OpenError(), "");
  const std::string current = Read(directory_ / "CURRENT");
  for (const std::string& wrong :
       {std::string(), std::string("0 v000000\n"),
        "0 v000001 " + checksums_[0] + "\n", current + "x",
        std::string("0 v000000 0000000G\n")}) {
    Write(directory_ / "CURRENT", wrong);
    EXPECT_THAT(OpenError(), HasSubstr("CURRENT: the line is '")) << wrong;
  }
  Write(directory_ / "CURRENT", "0 v000000 00000000\n");
  EXPECT_THAT(OpenError(), HasSubstr("manifest.json: its crc32 is"));
  // Of holes, which take no room on the disk.
  constexpr int64_t kTooLarge = int64_t{1} << 40;
  fs::resize_file(directory_ / "CURRENT", kTooLarge);
  EXPECT_THAT(OpenError(), HasSubstr("CURRENT: it has 1099511627776 bytes"));
  Write(directory_ / "CURRENT", current);
  const fs::path manifest = VersionPath(0) / "manifest.json";
  const auto manifest_bytes = fs::file_size(manifest);
  fs::resize_file(manifest, kTooLarge);
  EXPECT_THAT(OpenError(), HasSubstr("manifest of version 0, of at most"));
  fs::resize_file(manifest, manifest_bytes);

  for (const auto& [before, after, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"{", "[", "manifest.json: it is no JSON: parse error at line 1"},
           {"jax_tpu_embedding.tables", "x", "'format' of the manifest is 'x'"},
           {"\"format_version\": 1", "\"format_version\": 2",
            "has version 2, expected 1. Install a newer"},
           {"\"kind\"", "\"file_format\": \"npy\", \"kind\"",
            "its files are 'npy', which only other programs read"},
           {"\"version\": 0", "\"version\": 1", "it is of version 1, not 0"},
           {"\"full\"", "\"half\"", "'kind' of the manifest is 'half'"},
           {"\"full\"", "\"delta\"", "'base' of the manifest is missing"},
           {"\"rows\": 4", "\"rows\": -1", "an integer from 0 to 2^60"},
           {"\"rows\": 4", "\"rows\": 1152921504606846977",
            "an integer from 0 to 2^60"},
           {"\"rows\": 4", "\"rows\": 4.0", "'rows' of 'itéms'"},
           {"\"rows\": 4", "\"rows\": 5", "files have 4 rows, expected 5"},
           {"\"columns\": 2", "\"columns\": 3", "is 8, expected 12 for 3"},
           {"\"columns\": 2", "\"columns\": 16777216", "fewer than 2^24"},
           {"float32", "int2", "Unknown encoding 'int2'"},
           {"mean", "max", "unknown combiner 'max'"},
           {"\"items-2\"", "\"../items\"", "expected a file beside it"},
           {"\"items-2\"", "\"none\"", "none: cannot be read"},
           {"\"first_row\": 1", "\"first_row\": 2",
            "begins with row 2, expected 1"},
           {"\"rows\": 3,", "\"rows\": 1000000000000000000,", "do not fit"},
           {"\"crc32\": [", "\"crc32\": [\"\", ", "has 2 checksums"},
           {"\"crc32\": [", "\"crc32\": [null, ",
            "has null, expected a string"},
           {"\"clicked\": {\"table\": \"it", "\"clicked\": {\"table\": \"x",
            "none of its tables"},
           {"\"run\": \"5a\"", "\"run\": 1", "'run' of the manifest is 1"}}) {
    EXPECT_THAT(ErrorWith(before, after), HasSubstr(message)) << after;
  }
  EXPECT_EQ(OpenError(), "");

  const fs::path path = VersionPath(0) / "items-2";
  const std::string content = Read(path);
  Write(path, content + "x");
  EXPECT_THAT(OpenError(), HasSubstr("items-2: it has"));
  const auto entry = [](const std::string& file, size_t offset) {
    return StrCat("\"offset\": ", offset, ", \"bytes\": ", file.size(),
                  ", \"crc32\": [\"", Checksum(file));
  };
  const std::string longer = content + std::string(64, 'x');
  const size_t offset = content.size() - 24;
  Write(path, longer);
  EXPECT_THAT(ErrorWith(entry(content, offset), entry(longer, offset + 64)),
              HasSubstr(StrCat("its rows begin at byte ", offset, ", expected ",
                               offset + 64)));
  Write(path, Edited(content, "F32", "I32"));
  EXPECT_THAT(OpenError(), HasSubstr("is a I32 of 2 dimensions, expected F32["
                                     "3, 2] of 24 bytes"));
  Write(path, std::string(content.size(), '\xff'));
  EXPECT_THAT(OpenError(), HasSubstr("expected a safetensors file"));
  Write(path, content.substr(0, content.size() - 1) + "x");
  EXPECT_EQ(OpenError(), "");
  EXPECT_THAT(OpenError(/*verify=*/true),
              HasSubstr("items-2: the crc32 of its bytes from 0 on"));
}

TEST_F(ServedTablesTest, WrongDeltasAreNotUsed) {
  WriteFull(0);
  WriteDelta(1);
  for (const auto& [before, after, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"run\"", "\"run\"", ""},
           {"\"version\": 0", "\"version\": 1",
            "its base is version 1, expected one before 1"},
           {"\"changed_rows\": 2", "\"changed_rows\": 3",
            "files have 2 rows, expected 3"},
           {"\"changed_rows\": 2, \"deleted_rows\": 1, \"files\": [",
            "\"changed_rows\": 0, \"deleted_rows\": 1, \"files\": [], \"x\": [",
            "has 0 files for 0 changed and 1 deleted rows"},
           {"\"deleted_rows\": 1", "\"deleted_rows\": 2",
            "is a I64 of 1 dimensions, expected I64[2] of 16 bytes"},
           {"\"deleted_rows\": 1", "\"deleted_rows\": 1000000000000000000",
            "1000000000000000000 rows of tensor 'deleted' do not fit"}}) {
    EXPECT_THAT(ErrorWith(before, after, 1), HasSubstr(message)) << after;
  }
  // A header of a tensor that is not in the file, which has its checksum.
  const fs::path path = VersionPath(1) / "delta-1";
  const std::string content = Read(path);
  const std::string edited =
      Edited(Edited(content, "[8, 16]", "[888, 896]"), "}    ", "} ");
  ASSERT_EQ(edited.size(), content.size());
  Write(path, edited);
  EXPECT_THAT(ErrorWith(Checksum(content), Checksum(edited), 1),
              HasSubstr("tensor 'deleted' ends at byte"));
}

TEST_F(ServedTablesTest, RandomDamageIsAnErrorOrChangesNothing) {
  WriteFull(0);
  WriteDelta(1);
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  const std::vector<float> full = {0, 1, 10, 11, 20, 21, 30, 31};
  const std::vector<float> delta = {0, 1, -1, 1, 0, 0, -1, 1};
  std::minstd_rand random(0);
  int num_errors = 0;
  for (int i = 0; i < 500; ++i) {
    const fs::path& path = paths[random() % paths.size()];
    const std::string content = Read(path);
    std::string damaged = content;
    const size_t at = random() % content.size();
    switch (random() % 3) {
      case 0:
        damaged[at] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        damaged.resize(at);
        break;
      default:
        damaged.insert(at, "abc");
    }
    Write(path, damaged);
    const auto served =
        ServedTables::Open(directory_, {.verify = true}, executor_);
    if (served) {
      const auto& expected = (*served)->Problem().empty() ? delta : full;
      EXPECT_EQ(Rows(**served), expected) << path << " " << i;
    } else {
      EXPECT_THAT(served.error().message, HasSubstr(directory_.string()));
      ++num_errors;
    }
    Write(path, content);
  }
  EXPECT_GT(num_errors, 200);
}

}  // namespace
}  // namespace jte::serving
