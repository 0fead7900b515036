// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Rows of served tables as bytes (format version 1,
// docs/reference/served_tables.md), the plain form, which defines what is
// correct. encode_rows.h has it for many rows, pool_rows.h for sums of rows.
//
//   float32, bfloat16, float16   D values, rounded to nearest even
//   int8    D codes, zeros up to a multiple of 4, float32 scale, float32 bias
//   int4    ceil(D / 2) bytes, the even column in the low nibble, float16
//           scale, float16 bias
//
// All little endian. A value of the last two is code * scale + bias in float32,
// each operation rounded. A row of zero bytes reads as zeros in all of them.
//
//   int8    bias = min, scale = (max - min) / 255;
//           code = round((x - bias) * (255 / (max - min)))
//   int4    bias = min rounded down to float16, scale = (max - bias) / 15
//           rounded up to float16; code = round((x - bias) / scale)
//
// rounds to even and is clamped to the codes that there are. A minimum of -0
// counts as 0: which of the two it is depends on the order of comparisons. Rows
// whose values are all equal, or so near to each other that 255 / (max - min)
// is infinite, have codes 0 and scale 1. So |x' - x| is at most
//
//   bfloat16  2^-8 |x|              int8  (max - min) / 510 + 2^-22 max |x|
//   float16   2^-11 |x| (normal)    int4  scale / 2 + 2^-22 max |x|

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ROW_ENCODING_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ROW_ENCODING_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"

namespace jte::serving {

static_assert(std::endian::native == std::endian::little,
              "rows are mapped from files as they are");

// A table with as many or more is nobody's, and products of fewer fit 64 bits.
inline constexpr int64_t kMaxColumns = int64_t{1} << 24;

enum class Encoding { kFloat32, kBfloat16, kFloat16, kInt8, kInt4 };

inline constexpr std::array<std::string_view, 5> kEncodingNames = {
    "float32", "bfloat16", "float16", "int8", "int4"};

inline Result<Encoding> ParseEncoding(std::string_view name) {
  for (size_t i = 0; i < kEncodingNames.size(); ++i) {
    if (name == kEncodingNames[i]) return static_cast<Encoding>(i);
  }
  return InvalidArgument(
      "Unknown encoding '", name,
      "'; choose 'float32', 'bfloat16', 'float16', 'int8' or 'int4'.");
}

// Bytes of the codes of an int8 row, with its padding, and of an int4 row.
constexpr int64_t Int8CodeBytes(int64_t columns) {
  return (columns + 3) / 4 * 4;
}
constexpr int64_t Int4CodeBytes(int64_t columns) { return (columns + 1) / 2; }

constexpr int64_t RowBytes(Encoding encoding, int64_t columns) {
  switch (encoding) {
    case Encoding::kFloat32:
      return 4 * columns;
    case Encoding::kBfloat16:
    case Encoding::kFloat16:
      return 2 * columns;
    case Encoding::kInt8:
      return Int8CodeBytes(columns) + 8;
    case Encoding::kInt4:
      return Int4CodeBytes(columns) + 4;
  }
  return 0;
}

// Rows need not be aligned: an int4 row has any number of bytes.
template <typename T>
[[gnu::always_inline]] inline T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
[[gnu::always_inline]] inline void Store(T value, std::byte* bytes) {
  std::memcpy(bytes, &value, sizeof(T));
}

// What a code of int8 or int4 stands for.
struct Scaling {
  float scale;
  float bias;

  [[gnu::always_inline]] float operator()(uint32_t code) const {
    // Through a signed number: vectors convert no other before AVX-512.
    return static_cast<float>(static_cast<int32_t>(code)) * scale + bias;
  }
};

[[gnu::always_inline]] inline Scaling Int8ScalingOf(const std::byte* row,
                                                    int64_t columns) {
  const std::byte* after = row + Int8CodeBytes(columns);
  return {Load<float>(after), Load<float>(after + 4)};
}

[[gnu::always_inline]] inline Scaling Int4ScalingOf(const std::byte* row,
                                                    int64_t columns) {
  const std::byte* after = row + Int4CodeBytes(columns);
  return {ToFloat(Load<Float16>(after)), ToFloat(Load<Float16>(after + 2))};
}

// The value in a column of an encoded row.
inline float DecodeValue(Encoding encoding, const std::byte* row,
                         int64_t columns, int64_t column) {
  switch (encoding) {
    case Encoding::kFloat32:
      return Load<float>(row + 4 * column);
    case Encoding::kBfloat16:
      return ToFloat(Load<Bfloat16>(row + 2 * column));
    case Encoding::kFloat16:
      return ToFloat(Load<Float16>(row + 2 * column));
    case Encoding::kInt8:
      return Int8ScalingOf(row,
                           columns)(std::to_integer<uint32_t>(row[column]));
    case Encoding::kInt4: {
      const auto pair = std::to_integer<uint32_t>(row[column / 2]);
      return Int4ScalingOf(row,
                           columns)(column % 2 == 0 ? pair & 15 : pair >> 4);
    }
  }
  return 0.0f;
}

// The float16 next to `value`, which is finite: above, or below.
inline Float16 NextUp(Float16 value) {
  if ((value.bits & 0x7fff) == 0) return {0x0001};
  const bool is_negative = (value.bits & 0x8000) != 0;
  return {static_cast<uint16_t>(value.bits + (is_negative ? -1 : 1))};
}
inline Float16 NextDown(Float16 value) {
  if ((value.bits & 0x7fff) == 0) return {0x8001};
  const bool is_negative = (value.bits & 0x8000) != 0;
  return {static_cast<uint16_t>(value.bits + (is_negative ? 1 : -1))};
}

// The largest float16 that is not above `value`, and the smallest not below.
inline Float16 RoundDown(float value) {
  const auto nearest = RoundToNearest<Float16>(value);
  return ToFloat(nearest) > value ? NextDown(nearest) : nearest;
}
inline Float16 RoundUp(float value) {
  const auto nearest = RoundToNearest<Float16>(value);
  return ToFloat(nearest) < value ? NextUp(nearest) : nearest;
}

// The scaling of an int8 row, and what its values are multiplied by.
struct Int8Encoder {
  Int8Encoder(float min, float max) {
    const float range = max - min;
    inverse = 255.0f / range;
    bias = min + 0.0f;
    scale = range / 255.0f;
    if (range > 0.0f && std::isfinite(inverse)) return;
    inverse = 0.0f;
    scale = 1.0f;
  }

  float scale;
  float bias;
  float inverse;
};

// The scaling of an int4 row, as it is written and as it is read.
struct Int4Encoder {
  Int4Encoder(float min, float max) : stored_bias(RoundDown(min + 0.0f)) {
    bias = ToFloat(stored_bias);
    const float step = (max - bias) / 15.0f;
    // 1, or what rounds up to the smallest positive number if nothing is left
    // of the quotient in float32.
    stored_scale = !(max > bias)  ? Float16{0x3c00}
                   : step == 0.0f ? Float16{0x0001}
                                  : RoundUp(step);
    scale = ToFloat(stored_scale);
  }

  Float16 stored_scale;
  Float16 stored_bias;
  float scale;
  float bias;
};

// Rounded to even; what is above 2^22 stays above any code. Additions only,
// which every instruction set has in vectors.
[[gnu::always_inline]] inline float RoundCode(float value, float last_code) {
  constexpr float kUnits = 0x1.8p23f;  // its last place is 1
  return (std::clamp(value, 0.0f, last_code) + kUnits) - kUnits;
}

// Whether a row with these extremes, none of them a NaN, can be encoded.
inline bool CanEncode(Encoding encoding, float min, float max) {
  switch (encoding) {
    case Encoding::kInt8:
      // Below, 255 * scale is finite.
      return max - min <= 0x1p127f;
    case Encoding::kInt4:
      return min >= -65504.0f && max <= 65504.0f;
    case Encoding::kFloat16:
      // What rounds to a float16; halfway to the next one is infinity's.
      return min > -65520.0f && max < 65520.0f;
    case Encoding::kBfloat16:
      return std::isfinite(ToFloat(RoundToNearest<Bfloat16>(min))) &&
             std::isfinite(ToFloat(RoundToNearest<Bfloat16>(max)));
    case Encoding::kFloat32:
      return std::isfinite(min) && std::isfinite(max);
  }
  return false;
}

// Writes the RowBytes of a row. Returns false, with nothing useful in `bytes`,
// if a value is not finite or too large for the encoding.
inline bool EncodeRow(Encoding encoding, std::span<const float> row,
                      std::byte* bytes) {
  if (row.empty()) return true;
  for (const float value : row) {
    if (!std::isfinite(value)) return false;
  }
  const auto [min, max] = std::ranges::minmax(row);
  if (!CanEncode(encoding, min, max)) return false;
  const auto columns = static_cast<int64_t>(row.size());
  std::memset(bytes, 0, RowBytes(encoding, columns));
  switch (encoding) {
    case Encoding::kFloat32:
      std::memcpy(bytes, row.data(), row.size_bytes());
      break;
    case Encoding::kBfloat16:
      for (const float value : row) {
        Store(RoundToNearest<Bfloat16>(value), bytes);
        bytes += 2;
      }
      break;
    case Encoding::kFloat16:
      for (const float value : row) {
        Store(RoundToNearest<Float16>(value), bytes);
        bytes += 2;
      }
      break;
    case Encoding::kInt8: {
      const Int8Encoder encoder(min, max);
      for (int64_t d = 0; d < columns; ++d) {
        bytes[d] = static_cast<std::byte>(
            RoundCode((row[d] - encoder.bias) * encoder.inverse, 255.0f));
      }
      Store(encoder.scale, bytes + Int8CodeBytes(columns));
      Store(encoder.bias, bytes + Int8CodeBytes(columns) + 4);
      break;
    }
    case Encoding::kInt4: {
      const Int4Encoder encoder(min, max);
      for (int64_t d = 0; d < columns; ++d) {
        const auto code = static_cast<uint32_t>(
            RoundCode((row[d] - encoder.bias) / encoder.scale, 15.0f));
        bytes[d / 2] |= static_cast<std::byte>(d % 2 == 0 ? code : code << 4);
      }
      Store(encoder.stored_scale, bytes + Int4CodeBytes(columns));
      Store(encoder.stored_bias, bytes + Int4CodeBytes(columns) + 2);
      break;
    }
  }
  return true;
}

// Writes the values of an encoded row.
inline void DecodeRow(Encoding encoding, const std::byte* bytes,
                      std::span<float> row) {
  const auto columns = static_cast<int64_t>(row.size());
  for (int64_t d = 0; d < columns; ++d) {
    row[d] = DecodeValue(encoding, bytes, columns, d);
  }
}

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_ROW_ENCODING_H_
