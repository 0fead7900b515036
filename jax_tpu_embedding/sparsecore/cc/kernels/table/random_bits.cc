// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/random_bits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"

namespace jte::kernels {
namespace {

using Key = std::array<uint32_t, 2>;

// The words of a counter, of which Threefry makes random ones.
struct Words {
  uint32_t first;
  uint32_t second;
};

template <int... kRotations>
[[gnu::always_inline]] inline void Rounds(Words& x) {
  ((x.first += x.second, x.second = std::rotl(x.second, kRotations) ^ x.first),
   ...);
}

[[gnu::always_inline]] inline uint32_t Threefry(Key key, Words x) {
  const std::array<uint32_t, 3> keys = {key[0], key[1],
                                        key[0] ^ key[1] ^ 0x1bd11bda};
  x.first += keys[0];
  x.second += keys[1];
  for (uint32_t i = 1; i <= 5; ++i) {
    if (i % 2 == 1) {
      Rounds<13, 15, 26, 6>(x);
    } else {
      Rounds<17, 29, 16, 24>(x);
    }
    x.first += keys[i % 3];
    x.second += keys[(i + 1) % 3] + i;
  }
  return x.first ^ x.second;
}

// Positions that are hashed together. With a loop over each row instead, narrow
// rows would leave lanes of vectors empty.
constexpr size_t kMaxPositions = 512;

struct Positions {
  alignas(64) std::array<uint32_t, kMaxPositions> upper;
  alignas(64) std::array<uint32_t, kMaxPositions> lower;
};

JTE_VECTOR_CLONES void HashPositions(Key key, const Positions& positions,
                                     size_t n, uint32_t* bits) {
  for (size_t i = 0; i < n; ++i) {
    bits[i] = Threefry(key, {positions.upper[i], positions.lower[i]});
  }
}

// Those of `n` elements of a row, from element `first` of the table on.
void SetPositions(uint64_t first, size_t n, uint32_t* upper, uint32_t* lower) {
  const auto upper_of_first = static_cast<uint32_t>(first >> 32);
  const auto lower_of_first = static_cast<uint32_t>(first);
  for (size_t i = 0; i < n; ++i) {
    lower[i] = lower_of_first + static_cast<uint32_t>(i);
    upper[i] = upper_of_first + (lower[i] < lower_of_first ? 1 : 0);
  }
}

void DrawRows(Key key, std::span<const uint32_t> rows, uint32_t width,
              size_t num_columns, uint32_t* bits) {
  Positions positions;
  size_t n = 0;
  for (const uint32_t row : rows) {
    const uint64_t first = uint64_t{row} * width;
    for (size_t column = 0; column < num_columns;) {
      const size_t count = std::min(num_columns - column, kMaxPositions - n);
      SetPositions(first + column, count, &positions.upper[n],
                   &positions.lower[n]);
      column += count;
      n += count;
      if (n == kMaxPositions) {
        HashPositions(key, positions, n, bits);
        bits += n;
        n = 0;
      }
    }
  }
  HashPositions(key, positions, n, bits);
}

// What one task draws takes longer than to take a task.
constexpr size_t kMinDraws = size_t{1} << 14;

}  // namespace

void DrawRandomBits(Executor& executor, std::array<uint32_t, 2> key,
                    std::span<const uint32_t> rows, uint32_t width,
                    std::span<uint32_t> bits) {
  if (bits.empty()) return;
  const size_t num_columns = bits.size() / rows.size();
  const size_t num_rows = CeilDiv(kMinDraws, num_columns);  // of a task
  executor.ParallelFor(
      static_cast<int64_t>(CeilDiv(rows.size(), num_rows)), [=](int64_t k) {
        const size_t begin = static_cast<size_t>(k) * num_rows;
        DrawRows(key,
                 rows.subspan(begin, std::min(num_rows, rows.size() - begin)),
                 width, num_columns, &bits[begin * num_columns]);
      });
}

}  // namespace jte::kernels
