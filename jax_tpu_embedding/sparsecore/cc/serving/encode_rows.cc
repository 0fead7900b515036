// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/encode_rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {
namespace {

struct Extremes {
  float min;
  float max;
  bool are_finite;
};

// Of a row, in lanes of their own: the order of minima does not matter to them
// and does to the compiler.
[[gnu::always_inline]] inline Extremes ExtremesOf(const float* row,
                                                  int64_t columns) {
  constexpr int kLanes = 16;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float min[kLanes];
  float max[kLanes];
  uint32_t largest[kLanes] = {};
  std::ranges::fill(min, kInfinity);
  std::ranges::fill(max, -kInfinity);
  const auto take = [&min, &max, &largest](float value, int lane) {
    min[lane] = value < min[lane] ? value : min[lane];
    max[lane] = value > max[lane] ? value : max[lane];
    largest[lane] =
        std::max(largest[lane], std::bit_cast<uint32_t>(value) & ~kSignBit);
  };
  int64_t d = 0;
  for (; d + kLanes <= columns; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) take(row[d + lane], lane);
  }
  for (int lane = 0; d < columns; ++d, ++lane) take(row[d], lane);
  return {std::ranges::min(min), std::ranges::max(max),
          std::ranges::max(largest) < kFloatInfinity};
}

template <Encoding kEncoding>
[[gnu::always_inline]] inline void WriteRow(const float* row, int64_t columns,
                                            const Extremes& extremes,
                                            std::byte* bytes) {
  if constexpr (kEncoding == Encoding::kFloat32) {
    std::memcpy(bytes, row, columns * sizeof(float));
  } else if constexpr (kEncoding == Encoding::kInt8) {
    const Int8Encoder encoder(extremes.min, extremes.max);
    for (int64_t d = 0; d < columns; ++d) {
      bytes[d] = static_cast<std::byte>(static_cast<int32_t>(
          RoundCode((row[d] - encoder.bias) * encoder.inverse, 255.0f)));
    }
    const int64_t code_bytes = Int8CodeBytes(columns);
    for (int64_t d = columns; d < code_bytes; ++d) bytes[d] = std::byte{0};
    Store(encoder.scale, bytes + code_bytes);
    Store(encoder.bias, bytes + code_bytes + 4);
  } else if constexpr (kEncoding == Encoding::kInt4) {
    const Int4Encoder encoder(extremes.min, extremes.max);
    const auto code_of = [&encoder](float value) {
      return static_cast<int32_t>(
          RoundCode((value - encoder.bias) / encoder.scale, 15.0f));
    };
    for (int64_t pair = 0; pair < columns / 2; ++pair) {
      bytes[pair] = static_cast<std::byte>(code_of(row[2 * pair]) |
                                           code_of(row[2 * pair + 1]) << 4);
    }
    const int64_t code_bytes = Int4CodeBytes(columns);
    if (columns % 2 != 0) {
      bytes[code_bytes - 1] = static_cast<std::byte>(code_of(row[columns - 1]));
    }
    Store(encoder.stored_scale, bytes + code_bytes);
    Store(encoder.stored_bias, bytes + code_bytes + 2);
  } else {
    using T =
        std::conditional_t<kEncoding == Encoding::kBfloat16, Bfloat16, Float16>;
    for (int64_t d = 0; d < columns; ++d) {
      Store(RoundToNearest<T>(row[d]), bytes + 2 * d);
    }
  }
}

}  // namespace

template <Encoding kEncoding>
JTE_VECTOR_CLONES RefusedRows EncodeRowsAs(int64_t columns, int64_t num_rows,
                                           const float* __restrict row,
                                           std::byte* __restrict bytes) {
  const int64_t row_bytes = RowBytes(kEncoding, columns);
  RefusedRows refused;
  for (int64_t i = 0; i < num_rows; ++i) {
    const Extremes extremes = ExtremesOf(row, columns);
    if (extremes.are_finite &&
        CanEncode(kEncoding, extremes.min, extremes.max)) {
      WriteRow<kEncoding>(row, columns, extremes, bytes);
    } else {
      std::memset(bytes, 0, row_bytes);
      if (refused.count++ == 0) refused.first = i;
    }
    row += columns;
    bytes += row_bytes;
  }
  return refused;
}

RefusedRows EncodeRows(Encoding encoding, int64_t columns,
                       std::span<const float> values,
                       std::span<std::byte> bytes) {
  const int64_t n = std::ssize(values) / columns;
  const float* from = values.data();
  std::byte* to = bytes.data();
  switch (encoding) {
    case Encoding::kFloat32:
      return EncodeRowsAs<Encoding::kFloat32>(columns, n, from, to);
    case Encoding::kBfloat16:
      return EncodeRowsAs<Encoding::kBfloat16>(columns, n, from, to);
    case Encoding::kFloat16:
      return EncodeRowsAs<Encoding::kFloat16>(columns, n, from, to);
    case Encoding::kInt8:
      return EncodeRowsAs<Encoding::kInt8>(columns, n, from, to);
    case Encoding::kInt4:
      return EncodeRowsAs<Encoding::kInt4>(columns, n, from, to);
  }
  return {};
}

}  // namespace jte::serving
