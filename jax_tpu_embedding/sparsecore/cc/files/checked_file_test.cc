// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/files/checked_file.h"

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/files/crc32c.h"

namespace jte::files {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t size) {
  std::mt19937 random(size);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void Replace(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class CheckedFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return ::testing::TempDir() + "/" + name;
  }

  std::string ErrorOfReading(const std::string& path, size_t num_bytes) {
    Bytes values(num_bytes);
    const auto result = ReadChecked(path, values, num_bytes);
    return result ? "none" : result.error().message;
  }
};

TEST_F(CheckedFileTest, HasValuesZerosAndTheirChecksum) {
  for (const size_t size : {0, 1, 5000, 128 * 1024, 300'001}) {
    for (const size_t zeros : {0, 3, 10'000}) {
      const std::string path = Path("file");
      const Bytes values = RandomBytes(size);
      ASSERT_TRUE(WriteChecked(path, values, size + zeros));
      Bytes expected = values;
      expected.resize(size + zeros);
      const uint32_t crc = Crc32c(expected);
      for (int i = 0; i < 4; ++i) {
        expected.push_back(static_cast<std::byte>(crc >> (8 * i)));
      }
      ASSERT_EQ(Contents(path), expected) << size << " and " << zeros;
      Bytes found(size);
      ASSERT_TRUE(ReadChecked(path, found, size + zeros));
      EXPECT_EQ(found, values) << size << " and " << zeros;
    }
  }
}

TEST_F(CheckedFileTest, ReplacesALongerFile) {
  const std::string path = Path("longer");
  ASSERT_TRUE(WriteChecked(path, RandomBytes(100), 100));
  ASSERT_TRUE(WriteChecked(path, RandomBytes(10), 10));
  EXPECT_EQ(Contents(path).size(), 14u);
}

// Also in what is read for the checksum alone.
TEST_F(CheckedFileTest, EveryByteCounts) {
  const std::string path = Path("flipped");
  ASSERT_TRUE(WriteChecked(path, RandomBytes(20), 30));
  const Bytes intact = Contents(path);
  for (size_t i = 0; i < intact.size(); ++i) {
    Bytes damaged = intact;
    damaged[i] ^= std::byte{1};
    Replace(path, damaged);
    Bytes values(20);
    const auto result = ReadChecked(path, values, 30);
    ASSERT_FALSE(result) << i;
    EXPECT_THAT(result.error().message,
                MatchesRegex(path + ": its CRC-32C is [0-9a-f]{8}, and that of "
                                    "what it has [0-9a-f]{8}: it is damaged."));
  }
}

TEST_F(CheckedFileTest, SaysWhatIsWrong) {
  const std::string path = Path("wrong");
  ASSERT_TRUE(WriteChecked(path, RandomBytes(20), 20));
  EXPECT_EQ(ErrorOfReading(path, 20), "none");
  EXPECT_EQ(ErrorOfReading(path, 21), path + " has 24 bytes, not 25.");
  EXPECT_EQ(ErrorOfReading(path, 19), path + " has 24 bytes, not 23.");
  EXPECT_EQ(ErrorOfReading(Path("nowhere"), 20),
            "Cannot open " + Path("nowhere") + ": No such file or directory.");
  EXPECT_EQ(ErrorOfReading(::testing::TempDir(), 20),
            ::testing::TempDir() + " is no regular file.");
  // Opening it would wait for its writer.
  const std::string pipe = Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOfReading(pipe, 20), pipe + " is no regular file.");
  Bytes values(21);
  EXPECT_THAT(ReadChecked(path, values, 20).error().message,
              HasSubstr("21 bytes are not in a file of 20"));
  EXPECT_THAT(WriteChecked(path, values, 20).error().message,
              HasSubstr("21 bytes do not fit into a file of 20"));
  const std::string nowhere = Path("nowhere") + "/file";
  EXPECT_EQ(WriteChecked(nowhere, values, 21).error().message,
            "Cannot create " + nowhere + ": No such file or directory.");
  EXPECT_EQ(WriteChecked("/dev/full", values, 21).error().message,
            "Cannot write /dev/full: No space left on device.");
}

}  // namespace
}  // namespace jte::files
