// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/files/crc32c.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace jte::files {
namespace {

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32cTest, GivesThePublishedValues) {
  // The check value of the CRC catalogues, and RFC 3720, appendix B.4.
  const std::string_view digits = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(digits))), 0xe3069283);
  std::vector<std::byte> bytes(32, std::byte{0});
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aa);
  bytes.assign(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43);
  for (int i = 0; i < 32; ++i) bytes[i] = std::byte(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794e);
  EXPECT_EQ(Crc32c({}), 0u);
}

// Around the sizes of words and of the three streams.
TEST(Crc32cTest, IsThatOfTheTables) {
  const std::vector<std::byte> bytes = RandomBytes(20000);
  for (const size_t size :
       {0, 1, 7, 8, 9, 4095, 6143, 6144, 6145, 12288, 12297, 18435, 19990}) {
    for (const size_t first : {0, 1, 3}) {
      const auto part = std::span(bytes).subspan(first, size);
      EXPECT_EQ(ExtendCrc32c(123, part), ExtendCrc32cByTables(123, part))
          << size << " bytes from " << first;
    }
  }
}

TEST(Crc32cTest, OfTwoPartsIsThatOfTheWhole) {
  const std::vector<std::byte> bytes = RandomBytes(15000);
  const auto whole = std::span<const std::byte>(bytes);
  for (const size_t first : {0, 1, 6144, 14999}) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(whole.first(first)), whole.subspan(first)),
              Crc32c(whole))
        << first;
  }
}

}  // namespace
}  // namespace jte::files
