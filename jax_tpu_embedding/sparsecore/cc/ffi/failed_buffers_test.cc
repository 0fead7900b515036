// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"

namespace jte::ffi {
namespace {

struct Buffers {
  std::vector<int32_t> row_pointers = std::vector<int32_t>(8, 7);
  std::vector<int32_t> embedding_ids = std::vector<int32_t>(8, 7);
  std::vector<int32_t> sample_ids = std::vector<int32_t>(8, 7);
  std::vector<float> gains = std::vector<float>(8, 7.0f);

  convert::CsrBuffers ToWrite() {
    return {.row_pointers = row_pointers,
            .embedding_ids = embedding_ids,
            .sample_ids = sample_ids,
            .gains = gains};
  }
  kernels::CooBuffers ToRead() const {
    return {.row_pointers = row_pointers,
            .embedding_ids = embedding_ids,
            .sample_ids = sample_ids,
            .gains = gains};
  }
};

TEST(FailedBuffersTest, AMessageIsReadAsItWasWritten) {
  // Three arrays of 8 cells of 4 bytes hold 96.
  for (const size_t size : {1, 31, 32, 33, 64, 95, 96}) {
    Buffers buffers;
    const std::string message(size, 'x');
    WriteFailure(message, buffers.ToWrite());
    EXPECT_EQ(ReadFailure(buffers.ToRead()), message);
  }
}

TEST(FailedBuffersTest, AMessageIsCutWhereTheBuffersEnd) {
  Buffers buffers;
  WriteFailure(std::string(200, 'x'), buffers.ToWrite());
  EXPECT_EQ(ReadFailure(buffers.ToRead()), std::string(96, 'x'));
}

TEST(FailedBuffersTest, CharactersAreWhole) {
  Buffers buffers;
  std::string message = "x";
  for (int i = 0; i < 100; ++i) message += "\u00e9";  // of two bytes
  WriteFailure(message, buffers.ToWrite());
  EXPECT_EQ(ReadFailure(buffers.ToRead()), message.substr(0, 95));
}

TEST(FailedBuffersTest, CorruptBuffersHaveNoMessage) {
  Buffers without_text;
  WriteFailure("", without_text.ToWrite());
  EXPECT_EQ(ReadFailure(without_text.ToRead()), std::nullopt);
  Buffers with_pointers;
  WriteFailure("x", with_pointers.ToWrite());
  with_pointers.row_pointers[7] = 7;
  EXPECT_EQ(ReadFailure(with_pointers.ToRead()), std::nullopt);
}

TEST(FailedBuffersTest, ARecordedFailureHasNoMessage) {
  Buffers buffers;
  WriteFailure("x", buffers.ToWrite());
  EXPECT_FALSE(IsRecordedFailure(buffers.ToRead()));
  MarkAsRecorded(buffers.row_pointers);
  EXPECT_TRUE(IsRecordedFailure(buffers.ToRead()));
  EXPECT_EQ(ReadFailure(buffers.ToRead()), std::nullopt);
}

// A batch that failed gives NaN where corrupt buffers are an error.
TEST(FailedBuffersTest, CorruptBuffersAreNoRecordedFailure) {
  for (const size_t i : {1, 7}) {
    Buffers buffers;
    MarkAsRecorded(buffers.row_pointers);
    buffers.row_pointers[i] = 1;
    EXPECT_FALSE(IsRecordedFailure(buffers.ToRead())) << i;
  }
}

TEST(FailedBuffersTest, OtherBuffersHaveNoMessage) {
  EXPECT_EQ(ReadFailure(Buffers().ToRead()), std::nullopt);
  EXPECT_EQ(ReadFailure(kernels::CooBuffers{}), std::nullopt);
  EXPECT_FALSE(IsRecordedFailure(Buffers().ToRead()));
  EXPECT_FALSE(IsRecordedFailure(kernels::CooBuffers{}));
}

}  // namespace
}  // namespace jte::ffi
