// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/encode_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

namespace jte::serving {
namespace {

using ::testing::ElementsAre;

constexpr Encoding kAll[] = {Encoding::kFloat32, Encoding::kBfloat16,
                             Encoding::kFloat16, Encoding::kInt8,
                             Encoding::kInt4};

std::vector<int> Bytes(Encoding encoding, const std::vector<float>& row) {
  std::vector<std::byte> bytes(RowBytes(encoding, std::ssize(row)));
  EXPECT_TRUE(EncodeRow(encoding, row, bytes.data()));
  std::vector<int> numbers;
  for (const std::byte byte : bytes) {
    numbers.push_back(std::to_integer<int>(byte));
  }
  return numbers;
}

// Rows of all kinds: constant, tiny, huge, of one sign, with zeros of both.
std::vector<float> RandomRow(int64_t columns, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const float scales[] = {1, 1e-3f, 1e4f, 1e-41f, 1e-6f, 0};
  const float scale = scales[random() % 6];
  const float offset = random() % 3 == 0 ? 5 * normal(random) * scale : 0;
  std::vector<float> row(columns);
  for (float& value : row) value = normal(random) * scale + offset;
  if (random() % 4 == 0) row[random() % columns] = -0.0f;
  if (random() % 4 == 0) row[random() % columns] = 0.0f;
  return row;
}

TEST(RowEncodingTest, BytesAreThoseOfTheFormat) {
  // 0 is 0x00000000, 1 0x3f800000; scale 1/255 is 0x3b808081.
  EXPECT_THAT(Bytes(Encoding::kInt8, {0, 1, 0.5}),
              ElementsAre(0, 255, 128, 0, 0x81, 0x80, 0x80, 0x3b, 0, 0, 0, 0));
  // min -1, max 14: scale 1 (0x3c00), bias -1 (0xbc00); low nibble first.
  EXPECT_THAT(Bytes(Encoding::kInt4, {-1, 14, 2.5}),
              ElementsAre(0xf0, 0x04, 0x00, 0x3c, 0x00, 0xbc));
  // 1 + 2^-8 is halfway between two numbers: to the even one.
  EXPECT_THAT(Bytes(Encoding::kBfloat16, {1.0f + 0x1p-8f}),
              ElementsAre(0x80, 0x3f));
  EXPECT_THAT(Bytes(Encoding::kFloat16, {1, -2}),
              ElementsAre(0x00, 0x3c, 0x00, 0xc0));
  EXPECT_THAT(Bytes(Encoding::kFloat32, {1}), ElementsAre(0, 0, 0x80, 0x3f));
}

TEST(RowEncodingTest, ConstantRowsAreExactWhereTheirBiasIs) {
  EXPECT_THAT(Bytes(Encoding::kInt8, {2, 2}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40));
  EXPECT_THAT(Bytes(Encoding::kInt4, {2, 2}),
              ElementsAre(0, 0x00, 0x3c, 0x00, 0x40));
  EXPECT_THAT(Bytes(Encoding::kInt8, {-0.0f}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0));
}

TEST(RowEncodingTest, ZeroBytesReadAsZeros) {
  for (const Encoding encoding : kAll) {
    const std::vector<std::byte> bytes(RowBytes(encoding, 5));
    std::vector<float> row(5, 1.0f);
    DecodeRow(encoding, bytes.data(), row);
    EXPECT_THAT(row, ElementsAre(0, 0, 0, 0, 0));
  }
}

TEST(RowEncodingTest, ErrorsAreWithinTheBounds) {
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const int64_t columns = 1 + random() % 40;
    const std::vector<float> row = RandomRow(columns, random);
    const auto [min, max] = std::ranges::minmax(row);
    const float largest = std::max(std::abs(min), std::abs(max));
    for (const Encoding encoding : kAll) {
      std::vector<std::byte> bytes(RowBytes(encoding, columns));
      const bool is_small = encoding == Encoding::kInt4      ? largest <= 65504
                            : encoding == Encoding::kFloat16 ? largest < 65520
                                                             : true;
      ASSERT_EQ(EncodeRow(encoding, row, bytes.data()), is_small);
      if (!is_small) continue;
      std::vector<float> decoded(columns);
      DecodeRow(encoding, bytes.data(), decoded);
      for (int64_t d = 0; d < columns; ++d) {
        const double x = row[d];
        double bound = 1e-36;
        switch (encoding) {
          case Encoding::kFloat32:
            bound = 0;
            break;
          case Encoding::kBfloat16:
            bound += 0x1p-8 * std::abs(x);
            break;
          case Encoding::kFloat16:
            bound = 0x1p-11 * std::abs(x) + 0x1p-25;
            break;
          case Encoding::kInt8:
            bound += (double{max} - min) / 510 + 0x1p-22 * largest;
            break;
          case Encoding::kInt4: {
            const Scaling scaling = Int4ScalingOf(bytes.data(), columns);
            bound += scaling.scale / 2 + 0x1p-22 * largest;
            if (double{max} - scaling.bias > 15 * 0x1p-14) {
              ASSERT_LE(scaling.scale,
                        (1 + 0x1p-10) * (double{max} - scaling.bias) / 15);
            }
            break;
          }
        }
        ASSERT_LE(std::abs(decoded[d] - x), bound)
            << kEncodingNames[static_cast<int>(encoding)] << " " << x;
      }
    }
  }
}

TEST(RowEncodingTest, RefusesWhatAnEncodingDoesNotHave) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> bytes(16);
  for (const Encoding encoding : kAll) {
    EXPECT_FALSE(EncodeRow(encoding, {{1, kInfinity}}, bytes.data()));
    EXPECT_FALSE(EncodeRow(encoding, {{kNaN, 1}}, bytes.data()));
    EXPECT_TRUE(EncodeRow(encoding, {{1, 65504}}, bytes.data()));
  }
  EXPECT_FALSE(EncodeRow(Encoding::kInt4, {{1, 65505}}, bytes.data()));
  EXPECT_FALSE(EncodeRow(Encoding::kInt4, {{1, -65505}}, bytes.data()));
  EXPECT_FALSE(EncodeRow(Encoding::kFloat16, {{65520}}, bytes.data()));
  EXPECT_TRUE(EncodeRow(Encoding::kFloat16, {{65519}}, bytes.data()));
  EXPECT_FALSE(EncodeRow(Encoding::kBfloat16, {{3.4e38f}}, bytes.data()));
  EXPECT_FALSE(EncodeRow(Encoding::kInt8, {{-1e38f, 1e38f}}, bytes.data()));
  EXPECT_TRUE(EncodeRow(Encoding::kInt8, {{-8e37f, 8e37f}}, bytes.data()));
}

TEST(RowEncodingTest, EncodesNames) {
  for (const Encoding encoding : kAll) {
    EXPECT_EQ(ParseEncoding(kEncodingNames[static_cast<int>(encoding)]),
              encoding);
  }
  EXPECT_THAT(ParseEncoding("int2").error().message,
              ::testing::HasSubstr("Unknown encoding 'int2'; choose"));
}

TEST(EncodeRowsTest, HasTheBitsOfThePlainForm) {
  std::mt19937 random(2);
  for (const int64_t columns : {1, 2, 3, 4, 7, 16, 17, 33, 64, 100}) {
    for (const Encoding encoding : kAll) {
      constexpr int64_t kRows = 50;
      const int64_t row_bytes = RowBytes(encoding, columns);
      std::vector<float> values;
      std::vector<std::byte> expected(kRows * row_bytes);
      RefusedRows refused;
      for (int64_t i = 0; i < kRows; ++i) {
        std::vector<float> row = RandomRow(columns, random);
        if (i % 20 == 9) row[columns - 1] = std::nanf("");
        if (!EncodeRow(encoding, row, expected.data() + i * row_bytes)) {
          if (refused.count++ == 0) refused.first = i;
        }
        values.insert(values.end(), row.begin(), row.end());
      }
      std::vector<std::byte> bytes(kRows * row_bytes, std::byte{0xff});
      const RefusedRows found = EncodeRows(encoding, columns, values, bytes);
      EXPECT_EQ(bytes, expected) << columns;
      EXPECT_EQ(found.first, refused.first);
      EXPECT_EQ(found.count, refused.count);
    }
  }
}

TEST(PoolRowsTest, HasTheBitsOfDecodedRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t columns : {1, 2, 3, 5, 8, 15, 16, 31, 64, 100, 192, 257}) {
    for (const Encoding encoding : kAll) {
      constexpr int64_t kRows = 40;
      const int64_t row_bytes = RowBytes(encoding, columns);
      // Of its exact size: ASan sees a byte that is read beyond.
      std::vector<std::byte> table(kRows * row_bytes);
      std::vector<std::vector<float>> decoded(kRows,
                                              std::vector<float>(columns));
      for (int64_t i = 0; i < kRows; ++i) {
        std::byte* const row = table.data() + i * row_bytes;
        EncodeRow(encoding, RandomRow(columns, random), row);
        DecodeRow(encoding, row, decoded[i]);
      }
      std::vector<WeightedRow> rows;
      std::vector<const std::byte*> each;
      std::vector<int64_t> ends;
      std::vector<float> expected;
      std::vector<float> expected_each;
      for (int64_t s = 0; s < 20; ++s) {
        std::vector<float> sum(columns);
        for (int64_t i = 0; i < s % 7; ++i) {
          const int64_t row = random() % kRows;
          const float gain = normal(random);
          each.push_back(table.data() + row * row_bytes);
          rows.push_back({each.back(), gain});
          for (int64_t d = 0; d < columns; ++d) {
            sum[d] += gain * decoded[row][d];
          }
          expected_each.insert(expected_each.end(), decoded[row].begin(),
                               decoded[row].end());
        }
        ends.push_back(std::ssize(rows));
        expected.insert(expected.end(), sum.begin(), sum.end());
      }
      std::vector<float> out(expected.size(), -1.0f);
      PoolRows(encoding, columns, rows, ends, out.data());
      EXPECT_EQ(out, expected) << columns;
      std::vector<float> out_each(expected_each.size(), -1.0f);
      ReadRows(encoding, columns, each, out_each.data());
      EXPECT_EQ(out_each, expected_each) << columns;
    }
  }
}

TEST(PoolRowsTest, ReadsEveryFloat16) {
  std::vector<std::byte> table(65536 * 32);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (int d = 0; d < 16; ++d) {
      Store(Float16{static_cast<uint16_t>(bits)},
            table.data() + bits * 32 + 2 * d);
    }
  }
  std::vector<WeightedRow> rows;
  std::vector<int64_t> ends;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    rows.push_back({table.data() + bits * 32, 1.0f});
    ends.push_back(std::ssize(rows));
  }
  std::vector<float> out(65536 * 16);
  PoolRows(Encoding::kFloat16, 16, rows, ends, out.data());
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float expected = 0.0f + ToFloat(Float16{static_cast<uint16_t>(bits)});
    for (int d = 0; d < 16; ++d) {
      const float found = out[bits * 16 + d];
      ASSERT_TRUE(found == expected ||
                  (std::isnan(found) && std::isnan(expected)))
          << bits;
    }
  }
}

}  // namespace
}  // namespace jte::serving
