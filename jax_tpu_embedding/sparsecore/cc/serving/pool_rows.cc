// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/row_encoding.h"

namespace jte::serving {

// How the rows of an encoding are read: a piece of `kWidth` columns is kParts
// vectors of kLanes, in an order that costs least. Add adds gain * value to
// sums; Write puts these in the order of columns. kWidth: kSmallest or a larger
// power of two, of which kLargest is what registers of so many lanes have room
// for.

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

    [[gnu::always_inline]] static void Add(const std::byte* row, int64_t,
                                           int64_t column, float gain,
                                           Values* sums) {
      row += FirstByte(column);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Values values;
        ReadFloats<kLanes>(reinterpret_cast<const T*>(row), values);
        sums[part] += gain * values;
        row += FirstByte(kLanes);
      }
    }

    [[gnu::always_inline]] static void Write(const Values* sums, float* out) {
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(out + part * kLanes, &sums[part], sizeof(Values));
      }
    }
  };

  static constexpr int64_t FirstByte(int64_t column) {
    return column * static_cast<int64_t>(sizeof(T));
  }
};

// Codes are read by lanes that have one or several: of several, part j has the
// j-th of each lane, so that nothing is shuffled for a row.
template <int kBits>
struct CodedRows {
  static constexpr Encoding kEncoding =
      kBits == 8 ? Encoding::kInt8 : Encoding::kInt4;
  static constexpr int kSmallest = 2 * 32 / kBits;
  template <int kMostLanes>
  static constexpr int kLargest = std::min(64, 8 * kMostLanes);
  static constexpr bool kHasScaling = true;

  template <int kMostLanes>
  [[gnu::always_inline]] static Scaling ScalingOf(const std::byte* row,
                                                  int64_t columns) {
    if constexpr (kBits == 8) {
      return Int8ScalingOf(row, columns);
    } else if constexpr (kMostLanes < 8) {
      return Int4ScalingOf(row, columns);
    } else {
      // Int4ScalingOf takes twenty instructions more.
      const Vector<uint32_t, 4> stored = {
          Load<uint32_t>(row + Int4CodeBytes(columns))};
      Vector<float, 8> floats;
      ToFloats<Float16, 8>((Vector<uint16_t, 8>)stored, floats);
      return {floats[0], floats[1]};
    }
  }

  template <int kWidth, int kMostLanes>
  struct Piece {
    // Without AVX2 it takes long to make 32 bits of less.
    using Lane =
        std::conditional_t<(kMostLanes < 8), uint32_t,
                           std::conditional_t<kBits == 8, uint8_t, uint16_t>>;
    static constexpr int kCodes = 8 * sizeof(Lane) / kBits;
    static constexpr int kLanes = std::min(kWidth / kCodes, kMostLanes);
    static constexpr int kParts = kWidth / kLanes;
    // Whether a register has room for a term of each code that there is.
    static constexpr bool kHasAllTerms = kBits == 4 && kLanes == 16;
    using Values = Vector<float, kLanes>;
    using Codes = Vector<int32_t, kLanes>;

    [[gnu::always_inline]] static void Add(const std::byte* row,
                                           int64_t columns, int64_t column,
                                           float gain, Values* sums) {
      const Scaling scaling = ScalingOf<kMostLanes>(row, columns);
      const auto find_terms =
          [&scaling, gain](const Codes& codes, Values& terms)
              __attribute__((always_inline)) {
                terms = gain * (__builtin_convertvector(codes, Values) *
                                    scaling.scale +
                                scaling.bias);
              };
      Values all_terms;
      if constexpr (kHasAllTerms) {
        find_terms(Codes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                   all_terms);
      }
      row += FirstByte(column);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Vector<Lane, kLanes> stored;
        std::memcpy(&stored, row + part / kCodes * sizeof(stored),
                    sizeof(stored));
        Vector<uint32_t, kLanes> lanes;
        if constexpr (sizeof(Lane) == 4) {
          lanes = stored;
        } else {
          Widen<Lane, kLanes>(stored, lanes);
        }
        const Codes codes = (Codes)lanes >> (kBits * (part % kCodes));
        if constexpr (kHasAllTerms) {
          // By the codes modulo 16; as integers, or else GCC multiplies by the
          // gain what was looked up.
          sums[part] += (Values)__builtin_shuffle((Codes)all_terms, codes);
        } else {
          Values terms;
          find_terms(codes & ((1 << kBits) - 1), terms);
          sums[part] += terms;
        }
      }
    }

    [[gnu::always_inline]] static void Write(const Values* sums, float* out) {
#pragma GCC unroll 8
      for (int first = 0; first < kParts; first += kCodes) {
        Values columns[kCodes];
        std::memcpy(columns, sums + first, sizeof(columns));
        // Each turn moves every number from its place p to 2 * p, modulo all
        // places but one: in the end, from part j and lane i to i * kCodes + j.
#pragma GCC unroll 4
        for (int turns = kCodes; turns > 1; turns /= 2) Riffle(columns);
        std::memcpy(out, columns, sizeof(columns));
        out += kCodes * kLanes;
      }
    }

   private:
    // The first half of all numbers, with those of the second in between.
    [[gnu::always_inline]] static void Riffle(Values (&parts)[kCodes]) {
      Values riffled[kCodes];
#pragma GCC unroll 4
      for (int k = 0; k < kCodes / 2; ++k) {
        const Values& a = parts[k];
        const Values& b = parts[k + kCodes / 2];
        [&]<size_t... kLane>(std::index_sequence<kLane...>)
            __attribute__((always_inline)) {
              riffled[2 * k] = __builtin_shufflevector(
                  a, b, (kLane / 2 + kLane % 2 * kLanes)...);
              riffled[2 * k + 1] = __builtin_shufflevector(
                  a, b, ((kLanes + kLane) / 2 + kLane % 2 * kLanes)...);
            }(std::make_index_sequence<kLanes>());
      }
      std::memcpy(parts, riffled, sizeof(parts));
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
      Piece::Add(sample.rows[i].row, columns, column, sample.rows[i].gain,
                 sums);
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
