// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The gradient of a row: the sum of its terms, in the order that group_by_row.h
// says. A tile has a row, and a thread kSize columns of each of kChunks chunks
// of it, in registers: of a *window*, which is all of the row unless that is
// wider. Rows of any width have windows of single columns.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SUMS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SUMS_H_

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/vector.h"

namespace jte::gpu {

// Whether a row may have several windows.
template <int kSize>
constexpr bool kHasWindows = kSize == 1;

// The columns of a window that a thread has.
template <int kSize, int kChunks>
struct PieceOfRow {
  int64_t dim;
  int lane;
  int lanes;
  int64_t first = 0;  // column of the window

  JTE_DEVICE int64_t column(int chunk) const {
    return first + (int64_t{chunk} * lanes + lane) * kSize;
  }
  JTE_DEVICE bool has(int chunk) const { return column(chunk) < dim; }

  // The window after this one, and whether there is one.
  JTE_DEVICE PieceOfRow Next() const {
    return {dim, lane, lanes, first + int64_t{kChunks} * lanes * kSize};
  }
  JTE_DEVICE bool is_in_row() const { return first < dim; }
};

template <int kSize, int kChunks>
struct Sums {
  using Piece = PieceOfRow<kSize, kChunks>;
  Vector<float, kSize> chunk[kChunks];

  static JTE_DEVICE Sums Zero() { return {}; }

  JTE_DEVICE void Add(float factor, const Sums& other) {
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) {
        chunk[c].v[d] += factor * other.chunk[c].v[d];
      }
    }
  }

  JTE_DEVICE void Add(const Sums& other) {
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) chunk[c].v[d] += other.chunk[c].v[d];
    }
  }

  // Zero behind the row's end.
  static JTE_DEVICE Sums Read(const float* row, const Piece& piece) {
    Sums sums = {};
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      if (piece.has(c)) {
        sums.chunk[c] = LoadConstant<kSize>(row + piece.column(c));
      }
    }
    return sums;
  }

  JTE_DEVICE void Write(float* row, const Piece& piece) const {
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      if (piece.has(c)) Store(row + piece.column(c), chunk[c]);
    }
  }
};

// The sum of the terms [begin, end), from left to right.
template <int kSize, int kChunks>
JTE_DEVICE Sums<kSize, kChunks> SumTerms(
    const RowTerms& terms, int begin, int end,
    const PieceOfRow<kSize, kChunks>& piece) {
  using Sum = Sums<kSize, kChunks>;
  constexpr int kUnroll = kChunks == 1 ? 4 : 2;  // loads under way
  const auto gain = [&terms](int i) {
    if (terms.groups.counts->are_corrupt) return __builtin_nanf("");
    if (terms.cell_gains == nullptr) return 1.0f;
    return terms.cell_gains[terms.groups.cells ? terms.groups.cells[i] : i];
  };
  const auto row = [&terms](int i) {
    return terms.gradient + terms.groups.samples[i] * terms.dim;
  };
  Sum sum = Sum::Zero();
  int i = begin;
  for (; i + kUnroll <= end; i += kUnroll) {
    Sum rows[kUnroll];
    float gains[kUnroll];
    JTE_UNROLL
    for (int k = 0; k < kUnroll; ++k) {
      rows[k] = Sum::Read(row(i + k), piece);
      gains[k] = gain(i + k);
    }
    JTE_UNROLL
    for (int k = 0; k < kUnroll; ++k) sum.Add(gains[k], rows[k]);
  }
  for (; i < end; ++i) sum.Add(gain(i), Sum::Read(row(i), piece));
  return sum;
}

// The gradient of the row with the entries [begin, end), none of whose sources
// has more than a block of them.
template <int kSize, int kChunks>
JTE_DEVICE Sums<kSize, kChunks> SumShortRow(
    const RowTerms& terms, int begin, int end,
    const PieceOfRow<kSize, kChunks>& piece) {
  if (terms.has_one_source) return SumTerms(terms, begin, end, piece);
  const auto source = [&terms](int i) {
    return terms.groups.samples[i] / terms.batch_size_per_sc;
  };
  auto total = Sums<kSize, kChunks>::Zero();
  while (begin < end) {
    int source_end = begin + 1;
    while (source_end < end && source(source_end) == source(begin)) {
      ++source_end;
    }
    total.Add(SumTerms(terms, begin, source_end, piece));
    begin = source_end;
  }
  return total;
}

// The gradient of a long row, from the sums of its blocks.
template <int kSize, int kChunks>
JTE_DEVICE Sums<kSize, kChunks> SumLongRow(
    const RowTerms& terms, const LongRow& row, const float* block_sums,
    const PieceOfRow<kSize, kChunks>& piece) {
  using Sum = Sums<kSize, kChunks>;
  auto total = Sum::Zero();
  auto of_source = Sum::Zero();
  const int last = row.first_block + row.num_blocks;
  for (int b = row.first_block; b < last; ++b) {
    of_source.Add(Sum::Read(block_sums + b * terms.dim, piece));
    if (b + 1 == last ||
        terms.groups.blocks[b + 1].source != terms.groups.blocks[b].source) {
      total.Add(of_source);
      of_source = Sum::Zero();
    }
  }
  return total;
}

// A row of the batch, and how its gradient is summed.
template <int kSize, int kChunks>
struct RowToSum {
  using Piece = PieceOfRow<kSize, kChunks>;
  const RowTerms& terms;
  const float* block_sums;
  int64_t number;           // among the rows of the batch
  const LongRow* long_row;  // or null

  JTE_DEVICE int begin() const { return terms.groups.starts[number]; }
  JTE_DEVICE int64_t row() const { return terms.groups.rows[begin()]; }

  JTE_DEVICE Sums<kSize, kChunks> Sum(const Piece& piece) const {
    if (long_row != nullptr) {
      return SumLongRow(terms, *long_row, block_sums, piece);
    }
    return SumShortRow(terms, begin(), terms.groups.starts[number + 1], piece);
  }
  // The same, for kernels that sum in several places.
  JTE_DEVICE_CALL Sums<kSize, kChunks> CallSum(const Piece& piece) const {
    return Sum(piece);
  }
};

// Calls visit(row, piece) for all rows of the batch, with the first window of
// each. Any number of tiles do it together. Long rows come first: they take
// longest.
template <int kSize, int kChunks, typename Visit>
JTE_DEVICE void ForEachRow(const Thread& thread, int lanes, int threads,
                           const RowTerms& terms, const float* block_sums,
                           const Visit& visit) {
  const int64_t tiles = threads / lanes;
  const GroupCounts counts = *terms.groups.counts;
  for (int64_t i = thread.block() * tiles + thread.index() / lanes;
       i < counts.num_long_rows + counts.num_rows;
       i += thread.num_blocks() * tiles) {
    const LongRow* const long_row =
        i < counts.num_long_rows ? &terms.groups.long_rows[i] : nullptr;
    const int64_t number =
        long_row != nullptr ? long_row->row : i - counts.num_long_rows;
    if (long_row == nullptr && terms.IsLong(terms.groups.starts[number + 1] -
                                            terms.groups.starts[number])) {
      continue;
    }
    visit(RowToSum<kSize, kChunks>{terms, block_sums, number, long_row},
          PieceOfRow<kSize, kChunks>{terms.dim, thread.index() % lanes, lanes});
  }
}

// The sums of all blocks of long rows, [blocks, dim]: a kernel, of which any
// number of tiles do.
template <int kSize, int kChunks>
struct SumBlocks {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = kChunks == 1 ? 4 : 2;
  RowTerms terms;
  float* block_sums;
  int lanes;

  JTE_DEVICE void operator()(const Thread& thread) const {
    using Piece = PieceOfRow<kSize, kChunks>;
    const int64_t tiles = kThreads / lanes;
    const int64_t num_blocks = terms.groups.counts->num_blocks;
    for (int64_t b = thread.block() * tiles + thread.index() / lanes;
         b < num_blocks; b += thread.num_blocks() * tiles) {
      const RowBlock block = terms.groups.blocks[b];
      for (Piece piece{terms.dim, thread.index() % lanes, lanes};
           piece.is_in_row(); piece = piece.Next()) {
        SumTerms(terms, block.begin, block.end, piece)
            .Write(block_sums + b * terms.dim, piece);
      }
    }
  }
};

// Calls launch.operator()<kSize, kChunks>(lanes) with what suits rows of `dim`
// columns: their width decides how much a thread has in registers.
template <typename Launch>
const char* ForWidth(int64_t dim, const Launch& launch) {
  if (dim <= 0) return "Rows must have a column or more.";
  if (dim % 4 != 0 || dim > 512) {
    return launch.template operator()<1, 4>(LanesOfRow<1>(dim));
  }
  if (dim <= 128) return launch.template operator()<4, 1>(LanesOfRow<4>(dim));
  return launch.template operator()<4, 4>(32);
}

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_ROW_SUMS_H_
