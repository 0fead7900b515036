// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// How the rows of an encoding are read: a piece of `kWidth` columns is kParts
// vectors of kLanes, in an order that costs least; Write puts them, or sums of
// them, in the order of columns. kWidth: kSmallest or a larger power of two, of
// which kLargest is what registers of so many lanes have room for.

// T: float, Bfloat16 or Float16.
template <typename T>
struct PlainRows {
  static constexpr Encoding kEncoding =
      std::is_same_v<T, float>      ? Encoding::kFloat32
      : std::is_same_v<T, Bfloat16> ? Encoding::kBfloat16
                                    : Encoding::kFloat16;
  static constexpr int kSmallest = 4;
  template <int kMostLanes>
  static constexpr int kLargest = std::min(64, 8 * kMostLanes);
  static constexpr bool kHasScaling = false;

  template <int kWidth, int kMostLanes>
  struct Piece {
    static constexpr int kLanes = std::min(kWidth, kMostLanes);
    static constexpr int kParts = kWidth / kLanes;
    using Values = Vector<float, kLanes>;

    [[gnu::always_inline]] static void Read(const std::byte* row, int64_t,
                                            int64_t column, Values* values) {
      row += FirstByte(column);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        ReadFloats<kLanes>(reinterpret_cast<const T*>(row), values[part]);
        row += FirstByte(kLanes);
      }
    }

    [[gnu::always_inline]] static void Write(const Values* values, float* out) {
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(out + part * kLanes, &values[part], sizeof(Values));
      }
    }
  };

  static constexpr int64_t FirstByte(int64_t column) {
    return column * static_cast<int64_t>(sizeof(T));
  }
};

// Codes of kBits, read as words of 32 bits: part j has the j-th code of each
// word, so that nothing is shuffled for a row.
template <int kBits>
struct CodedRows {
  static constexpr Encoding kEncoding =
      kBits == 8 ? Encoding::kInt8 : Encoding::kInt4;
  static constexpr int kSmallest = 2 * 32 / kBits;
  template <int kMostLanes>
  static constexpr int kLargest = std::min(64, 32 / kBits * kMostLanes);
  static constexpr bool kHasScaling = true;

  [[gnu::always_inline]] static Scaling ScalingOf(const std::byte* row,
                                                  int64_t columns) {
    return kBits == 8 ? Int8ScalingOf(row, columns)
                      : Int4ScalingOf(row, columns);
  }

  template <int kWidth, int>
  struct Piece {
    static constexpr int kParts = 32 / kBits;
    static constexpr int kLanes = kWidth / kParts;
    using Values = Vector<float, kLanes>;

    [[gnu::always_inline]] static void Read(const std::byte* row,
                                            int64_t columns, int64_t column,
                                            Values* values) {
      Vector<int32_t, kLanes> words;
      std::memcpy(&words, row + FirstByte(column), sizeof(words));
      const Scaling scaling = ScalingOf(row, columns);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        const Vector<int32_t, kLanes> codes =
            (words >> (kBits * part)) & ((1 << kBits) - 1);
        values[part] = __builtin_convertvector(codes, Values) * scaling.scale +
                       scaling.bias;
      }
    }

    [[gnu::always_inline]] static void Write(const Values* values, float* out) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int part = 0; part < kParts; ++part) {
          *out++ = values[part][lane];
        }
      }
    }
  };

  static constexpr int64_t FirstByte(int64_t column) {
    return column * kBits / 8;
  }
};

// How many rows ahead to prefetch: 24 KiB of them.
constexpr int64_t RowsAhead(int64_t row_bytes) {
  return std::clamp<int64_t>(24576 / std::max<int64_t>(row_bytes, 1), 8, 96);
}

// The lines of bytes of a row, and of its `last` one: rows of most encodings
// begin anywhere in a line, and a scaling is at the end.
[[gnu::always_inline]] inline void Prefetch(const std::byte* row, int64_t first,
                                            int64_t num_bytes, int64_t last) {
  kernels::PrefetchTableRow(row + first, num_bytes);
  kernels::PrefetchTableRow(row + last, 1);
}

// The rows of one sample, and those to prefetch meanwhile.
struct RowsToSum {
  const WeightedRow* rows;
  int64_t begin;
  int64_t end;
  int64_t last;  // of all samples
  int64_t distance;
};

// Writes the sums of the columns from `column` on, in pieces of `kWidth`;
// returns the first column that is left.
template <typename Rows, int kLanes, int kWidth>
[[gnu::always_inline]] inline int64_t SumPieces(const RowsToSum& sample,
                                                int64_t columns,
                                                int64_t row_bytes,
                                                int64_t column, float* out) {
  using Piece = typename Rows::template Piece<kWidth, kLanes>;
  for (; column + kWidth <= columns; column += kWidth) {
    const int64_t first = Rows::FirstByte(column);
    const int64_t num_bytes = Rows::FirstByte(kWidth);
    const int64_t last =
        Rows::kHasScaling ? row_bytes - 1 : first + num_bytes - 1;
    typename Piece::Values sums[Piece::kParts] = {};
    for (int64_t i = sample.begin; i < sample.end; ++i) {
      const int64_t next = i + sample.distance;
      if (next < sample.last) {
        Prefetch(sample.rows[next].row, first, num_bytes, last);
      }
      typename Piece::Values values[Piece::kParts];
      Piece::Read(sample.rows[i].row, columns, column, values);
#pragma GCC unroll 8
      for (int part = 0; part < Piece::kParts; ++part) {
        sums[part] += sample.rows[i].gain * values[part];
      }
    }
    Piece::Write(sums, out + column);
  }
  return column;
}

// The columns that are left, one by one.
template <typename Rows>
[[gnu::always_inline]] inline void SumLastColumns(const RowsToSum& sample,
                                                  int64_t columns,
                                                  int64_t column, float* out) {
  for (; column < columns; ++column) {
    float sum = 0.0f;
    for (int64_t i = sample.begin; i < sample.end; ++i) {
      sum += sample.rows[i].gain *
             DecodeValue(Rows::kEncoding, sample.rows[i].row, columns, column);
    }
    out[column] = sum;
  }
}

// The sums of all columns from `column` on, in pieces of `kWidth`, then of
// smaller ones.
template <typename Rows, int kLanes, int kWidth>
[[gnu::always_inline]] inline void SumColumns(const RowsToSum& sample,
                                              int64_t columns,
                                              int64_t row_bytes, int64_t column,
                                              float* out) {
  column =
      SumPieces<Rows, kLanes, kWidth>(sample, columns, row_bytes, column, out);
  if constexpr (kWidth > Rows::kSmallest) {
    SumColumns<Rows, kLanes, kWidth / 2>(sample, columns, row_bytes, column,
                                         out);
  } else {
    SumLastColumns<Rows>(sample, columns, column, out);
  }
}

template <typename Rows, int kLanes>
[[gnu::always_inline]] inline void PoolRowsInLanes(
    int64_t columns, std::span<const WeightedRow> rows,
    std::span<const int64_t> ends, float* out) {
  const int64_t row_bytes = RowBytes(Rows::kEncoding, columns);
  RowsToSum sample{.rows = rows.data(),
                   .begin = 0,
                   .end = 0,
                   .last = std::ssize(rows),
                   .distance = RowsAhead(row_bytes)};
  const int64_t num_ahead = std::min(sample.distance, sample.last);
  for (int64_t i = 0; i < num_ahead; ++i) {
    Prefetch(rows[i].row, 0, row_bytes, row_bytes - 1);
  }
  for (const int64_t end : ends) {
    sample.end = end;
    SumColumns<Rows, kLanes, Rows::template kLargest<kLanes>>(
        sample, columns, row_bytes, /*column=*/0, out);
    sample.begin = end;
    out += columns;
  }
}

template <typename Rows>
void PoolRowsOf(int64_t columns, std::span<const WeightedRow> rows,
                std::span<const int64_t> ends, float* out) {
  WithVectorLanes([=]<int kLanes>() __attribute__((always_inline)) {
    PoolRowsInLanes<Rows, kLanes>(columns, rows, ends, out);
  });
}

template <Encoding kEncoding>
[[gnu::always_inline]] inline void ReadRow(const std::byte* row,
                                           int64_t columns, float* out) {
  if constexpr (kEncoding == Encoding::kFloat32) {
    std::memcpy(out, row, columns * sizeof(float));
  } else if constexpr (kEncoding == Encoding::kInt4) {
    const Scaling scaling = Int4ScalingOf(row, columns);
    for (int64_t pair = 0; pair < columns / 2; ++pair) {
      const auto codes = std::to_integer<uint32_t>(row[pair]);
      out[2 * pair] = scaling(codes & 15);
      out[2 * pair + 1] = scaling(codes >> 4);
    }
    if (columns % 2 != 0) {
      out[columns - 1] = DecodeValue(kEncoding, row, columns, columns - 1);
    }
  } else if constexpr (kEncoding == Encoding::kInt8) {
    const Scaling scaling = Int8ScalingOf(row, columns);
    for (int64_t d = 0; d < columns; ++d) {
      out[d] = scaling(std::to_integer<uint32_t>(row[d]));
    }
  } else {
    for (int64_t d = 0; d < columns; ++d) {
      out[d] = DecodeValue(kEncoding, row, columns, d);
    }
  }
}

template <Encoding kEncoding>
JTE_VECTOR_CLONES void ReadRowsOf(int64_t columns,
                                  std::span<const std::byte* const> rows,
                                  float* out) {
  const int64_t row_bytes = RowBytes(kEncoding, columns);
  const int64_t distance = RowsAhead(row_bytes);
  const int64_t num_rows = std::ssize(rows);
  for (int64_t i = 0; i < std::min(distance, num_rows); ++i) {
    Prefetch(rows[i], 0, row_bytes, row_bytes - 1);
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    if (i + distance < num_rows) {
      Prefetch(rows[i + distance], 0, row_bytes, row_bytes - 1);
    }
    ReadRow<kEncoding>(rows[i], columns, out);
    out += columns;
  }
}

void PoolRows(Encoding encoding, int64_t columns,
              std::span<const WeightedRow> rows, std::span<const int64_t> ends,
              float* out) {
  switch (encoding) {
    case Encoding::kFloat32:
      return PoolRowsOf<PlainRows<float>>(columns, rows, ends, out);
    case Encoding::kBfloat16:
      return PoolRowsOf<PlainRows<Bfloat16>>(columns, rows, ends, out);
    case Encoding::kFloat16:
      return PoolRowsOf<PlainRows<Float16>>(columns, rows, ends, out);
    case Encoding::kInt8:
      return PoolRowsOf<CodedRows<8>>(columns, rows, ends, out);
    case Encoding::kInt4:
      return PoolRowsOf<CodedRows<4>>(columns, rows, ends, out);
  }
}

void ReadRows(Encoding encoding, int64_t columns,
              std::span<const std::byte* const> rows, float* out) {
  switch (encoding) {
    case Encoding::kFloat32:
      return ReadRowsOf<Encoding::kFloat32>(columns, rows, out);
    case Encoding::kBfloat16:
      return ReadRowsOf<Encoding::kBfloat16>(columns, rows, out);
    case Encoding::kFloat16:
      return ReadRowsOf<Encoding::kFloat16>(columns, rows, out);
    case Encoding::kInt8:
      return ReadRowsOf<Encoding::kInt8>(columns, rows, out);
    case Encoding::kInt4:
      return ReadRowsOf<Encoding::kInt4>(columns, rows, out);
  }
}

}  // namespace jte::serving
