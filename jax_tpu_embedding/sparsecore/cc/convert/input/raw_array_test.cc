// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace jte::convert {
namespace {

using ::testing::ElementsAre;

const std::byte* BytesOf(const auto& numbers) {
  return reinterpret_cast<const std::byte*>(numbers.data());
}

template <typename To, typename From>
std::vector<To> Converted(const std::vector<From>& numbers, ElementType type) {
  std::vector<To> out(numbers.size());
  const StridedRun run = {.data = BytesOf(numbers),
                          .size = std::ssize(numbers),
                          .stride = sizeof(From),
                          .type = type};
  Convert(std::span(&run, 1), out.data());
  return out;
}

float FromHalf(uint16_t bits) {
  return Converted<float>(std::vector<uint16_t>{bits},
                          {.dtype = DType::kFloat16})[0];
}

TEST(ConvertTest, WidensIntegers) {
  EXPECT_THAT(Converted<int32_t>(std::vector<int8_t>{-1, 127}, {DType::kInt8}),
              ElementsAre(-1, 127));
  EXPECT_THAT(
      Converted<int32_t>(std::vector<uint16_t>{0, 65535}, {DType::kUint16}),
      ElementsAre(0, 65535));
  EXPECT_THAT(
      Converted<int64_t>(std::vector<uint32_t>{4294967295u}, {DType::kUint32}),
      ElementsAre(4294967295));
}

TEST(ConvertTest, SwapsBytes) {
  EXPECT_THAT(
      Converted<int32_t>(std::vector<int32_t>{0x01020304},
                         {.dtype = DType::kInt32, .byte_swapped = true}),
      ElementsAre(0x04030201));
  const auto swapped = std::byteswap(std::bit_cast<uint64_t>(1.5));
  EXPECT_THAT(
      Converted<float>(std::vector<uint64_t>{swapped},
                       {.dtype = DType::kFloat64, .byte_swapped = true}),
      ElementsAre(1.5f));
}

TEST(ConvertTest, RoundsToTheNearestFloat) {
  EXPECT_THAT(
      Converted<float>(std::vector<int64_t>{(1 << 24) + 1, 3}, {DType::kInt64}),
      ElementsAre(16777216.0f, 3.0f));
  EXPECT_THAT(
      Converted<float>(std::vector<double>{0.1, 1e300}, {DType::kFloat64}),
      ElementsAre(0.1f, std::numeric_limits<float>::infinity()));
}

// Source: IEEE 754-2019, table 3.5.
TEST(ConvertTest, ReadsEveryKindOfHalf) {
  EXPECT_EQ(FromHalf(0x3c00), 1.0f);
  EXPECT_EQ(FromHalf(0xc000), -2.0f);
  EXPECT_EQ(FromHalf(0x7bff), 65504.0f);
  EXPECT_EQ(FromHalf(0x0001), 0x1p-24f);
  EXPECT_EQ(FromHalf(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(FromHalf(0x0400), 0x1p-14f);
  EXPECT_TRUE(std::signbit(FromHalf(0x8000)));
  EXPECT_EQ(FromHalf(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromHalf(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(FromHalf(0x7e00)));
}

TEST(ConvertTest, ReadsBfloat16) {
  EXPECT_THAT(Converted<float>(std::vector<uint16_t>{0x3f80, 0xc040},
                               {DType::kBfloat16}),
              ElementsAre(1.0f, -3.0f));
}

TEST(ConvertTest, ReadsRunsOneAfterTheOther) {
  const std::vector<int32_t> a = {1, 2, 3, 4};
  const std::vector<int16_t> b = {5, 6};
  const std::vector<StridedRun> runs = {
      {.data = BytesOf(a), .size = 2, .stride = 8, .type = {DType::kInt32}},
      {},
      {.data = BytesOf(b), .size = 2, .stride = 2, .type = {DType::kInt16}},
      {.data = BytesOf(a), .size = 3, .stride = 4, .type = {DType::kInt32}},
  };
  std::vector<int32_t> out(7);
  Convert(std::span(runs), out.data());
  EXPECT_THAT(out, ElementsAre(1, 3, 5, 6, 1, 2, 3));
}

// Rows of 3 in a matrix of 4 columns, read in all partitions.
TEST(ConvertTest, ReadsAnyPartOfAMatrix) {
  const std::vector<int32_t> numbers = {0, 1, 2, -1, 3, 4, 5, -1};
  const StridedArray rows = {.data = BytesOf(numbers),
                             .type = {DType::kInt32},
                             .shape = {2, 3},
                             .strides = {16, 4}};
  // Column by column: 0 2 4 / 1 3 5.
  const std::vector<int32_t> by_column = {0, 3, 1, 4, 2, 5};
  const StridedArray columns = {.data = BytesOf(by_column),
                                .type = {DType::kInt32},
                                .shape = {2, 3},
                                .strides = {4, 8}};
  for (const StridedArray& array : {rows, columns}) {
    for (int64_t begin = 0; begin <= 6; ++begin) {
      for (int64_t end = begin; end <= 6; ++end) {
        std::vector<int64_t> out(end - begin);
        Convert(array, begin, end, out.data());
        for (int64_t i = begin; i < end; ++i) EXPECT_EQ(out[i - begin], i);
      }
    }
  }
}

TEST(StridedArrayTest, IsPlainOnlyIfASpanCanViewIt) {
  const std::vector<int32_t> numbers(20);
  const StridedArray plain = {.data = BytesOf(numbers),
                              .type = {DType::kInt32},
                              .shape = {2, 3},
                              .strides = {12, 4}};
  EXPECT_TRUE(plain.IsPlain(DType::kInt32));
  EXPECT_FALSE(plain.IsPlain(DType::kUint32));
  StridedArray array = plain;
  array.type.byte_swapped = true;
  EXPECT_FALSE(array.IsPlain(DType::kInt32));
  array = plain;
  array.data += 2;
  EXPECT_FALSE(array.IsPlain(DType::kInt32));
  array = plain;
  array.strides = {16, 4};
  EXPECT_FALSE(array.IsPlain(DType::kInt32));
  array.shape = {1, 3};  // The stride of a single row does not matter,
  EXPECT_TRUE(array.IsPlain(DType::kInt32));
  array.shape = {0, 3};  // nor does anything about no rows.
  EXPECT_TRUE(array.IsPlain(DType::kInt32));
  array = plain;
  array.strides = {12, 8};
  EXPECT_FALSE(array.IsPlain(DType::kInt32));
  array.shape = {3, 1};  // One column: only rows have to follow each other.
  array.strides = {4, 99};
  EXPECT_TRUE(array.IsPlain(DType::kInt32));
}

TEST(CommonIdTypeTest, HasRoomForAllNumbers) {
  using Types = std::vector<DType>;
  const auto common = [](const Types& types) {
    CommonIdType type;
    for (DType dtype : types) type.Add(dtype);
    return type.Get();
  };
  EXPECT_EQ(common({}), DType::kInt32);
  EXPECT_EQ(common({DType::kInt8, DType::kUint16}), DType::kInt32);
  EXPECT_EQ(common({DType::kUint8, DType::kUint32}), DType::kUint32);
  EXPECT_EQ(common({DType::kInt8, DType::kUint32}), DType::kInt64);
  EXPECT_EQ(common({DType::kInt64, DType::kUint32}), DType::kInt64);
  EXPECT_EQ(common({DType::kUint64, DType::kUint8}), DType::kUint64);
  EXPECT_EQ(common({DType::kUint64, DType::kInt8}), std::nullopt);
}

}  // namespace
}  // namespace jte::convert
