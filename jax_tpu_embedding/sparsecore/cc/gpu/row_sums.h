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

// Rows of which a tile reads together where they are.
constexpr int kRowsOfTile = 8;

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
  static JTE_DEVICE Sums All(float value) {
    Sums sums;
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) sums.chunk[c].v[d] = value;
    }
    return sums;
  }

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

  // With zeros behind the row's end, where an infinite gain makes NaN of them.
  JTE_DEVICE Sums InRow(const Piece& piece) const {
    Sums sums = *this;
    JTE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      if (!piece.has(c)) sums.chunk[c] = {};
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

// gain * gradient[sample, :].
struct Term {
  int32_t sample;
  float gain;
};

// Without branches that other loads would wait for.
JTE_DEVICE float ReadGain(const RowTerms& terms, int i) {
  const int cell = terms.groups.cells != nullptr ? terms.groups.cells[i] : i;
  return terms.cell_gains != nullptr ? terms.cell_gains[cell] : 1.0f;
}

// That of entry i.
JTE_DEVICE Term ReadTerm(const RowTerms& terms, int i) {
  return {terms.groups.samples[i], ReadGain(terms, i)};
}

// The sum of the terms [begin, end), from left to right, of which the first is
// known; NaN of corrupt buffers. kUnroll: gradients whose loads are under way.
template <int kUnroll, int kSize, int kChunks>
JTE_DEVICE Sums<kSize, kChunks> SumTerms(
    const RowTerms& terms, const Term& first, int begin, int end,
    const PieceOfRow<kSize, kChunks>& piece) {
  using Sum = Sums<kSize, kChunks>;
  const auto read = [&terms, &piece](int32_t sample) {
    return Sum::Read(terms.gradient + sample * terms.dim, piece);
  };
  const float zero =
      terms.groups.counts->flaws.any() ? __builtin_nanf("") : 0.0f;
  Sum sum = Sum::All(zero);
  sum.Add(first.gain, read(first.sample));
  int i = begin + 1;
  if (i + kUnroll <= end) {
    // The next samples are read while the gradients of these arrive.
    int32_t samples[kUnroll];
    JTE_UNROLL
    for (int k = 0; k < kUnroll; ++k) samples[k] = terms.groups.samples[i + k];
    for (; i + kUnroll <= end; i += kUnroll) {
      Sum rows[kUnroll];
      float gains[kUnroll];
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) {
        rows[k] = read(samples[k]);
        gains[k] = ReadGain(terms, i + k);
      }
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) {
        const int next = i + kUnroll + k;
        samples[k] = terms.groups.samples[next < end ? next : end - 1];
      }
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) sum.Add(gains[k], rows[k]);
    }
  }
  for (; i < end; ++i) {
    const Term term = ReadTerm(terms, i);
    sum.Add(term.gain, read(term.sample));
  }
  return sum;
}

// A row of the batch, and how its gradient is summed.
template <int kSize, int kChunks>
struct RowToSum {
  using Piece = PieceOfRow<kSize, kChunks>;
  static constexpr int kUnroll = kChunks == 1 ? 4 : 2;

  const RowTerms& terms;
  const float* block_sums;
  int number;               // among the rows of the batch
  const LongRow* long_row;  // or null
  int begin;                // its entries
  int end;
  int32_t row;  // of the table
  Term first;   // of its terms

  JTE_DEVICE Sums<kSize, kChunks> Sum(const Piece& piece) const {
    if (long_row != nullptr) return SumLongRow(piece);
    if (terms.has_one_source) {
      return SumTerms<kUnroll>(terms, first, begin, end, piece);
    }
    return SumSources(piece);
  }
  // The same, for kernels that sum in several places.
  JTE_DEVICE_CALL Sums<kSize, kChunks> CallSum(const Piece& piece) const {
    return Sum(piece);
  }

 private:
  // None of the sources has more than a block of entries.
  JTE_DEVICE Sums<kSize, kChunks> SumSources(const Piece& piece) const {
    const auto source = [this](int i) {
      return terms.groups.samples[i] / terms.batch_size_per_sc;
    };
    auto total = Sums<kSize, kChunks>::Zero();
    for (int i = begin; i < end;) {
      int source_end = i + 1;
      while (source_end < end && source(source_end) == source(i)) {
        ++source_end;
      }
      total.Add(
          SumTerms<kUnroll>(terms, ReadTerm(terms, i), i, source_end, piece));
      i = source_end;
    }
    return total;
  }

  // From the sums of its blocks.
  JTE_DEVICE Sums<kSize, kChunks> SumLongRow(const Piece& piece) const {
    using Sum = Sums<kSize, kChunks>;
    auto total = Sum::Zero();
    auto of_source = Sum::Zero();
    const int last = long_row->first_block + long_row->num_blocks;
    int source = terms.groups.blocks[long_row->first_block].source;
    for (int b = long_row->first_block; b < last; b += kUnroll) {
      Sum sums[kUnroll];
      int sources[kUnroll];
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) {
        const int block = b + k < last ? b + k : last - 1;
        sums[k] = Sum::Read(block_sums + block * terms.dim, piece);
        sources[k] = terms.groups.blocks[block].source;
      }
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) {
        if (b + k >= last) break;
        if (sources[k] != source) {
          total.Add(of_source);
          of_source = Sum::Zero();
          source = sources[k];
        }
        of_source.Add(sums[k]);
      }
    }
    total.Add(of_source);
    return total;
  }
};

// Calls visit(row, piece) for all rows of the batch, with the first window of
// each. Any number of tiles do it together; all threads of a tile must. Long
// rows come first: they take longest.
//
// Each thread of a tile reads where one of its next rows is, so that the tile
// waits for these numbers once for several rows. They are not neighbours, since
// rows that are popular often are. prefetch(row, lane) is called with the row
// of the table that will be visited next.
template <int kSize, int kChunks, typename PrefetchRow, typename Visit>
JTE_DEVICE void ForEachRow(const Thread& thread, int lanes, int threads,
                           const RowTerms& terms, const float* block_sums,
                           const PrefetchRow& prefetch, const Visit& visit) {
  const int tiles = threads / lanes;
  const int lane = thread.index() % lanes;
  const int num_rows = terms.groups.counts->num_rows();
  const int num_long_rows = terms.groups.counts->num_long_rows;
  const int turns = lanes < kRowsOfTile ? lanes : kRowsOfTile;
  const int stride = (num_rows + turns - 1) / turns;
  const int num_tiles = static_cast<int>(thread.num_blocks()) * tiles;
  for (int i =
           static_cast<int>(thread.block()) * tiles + thread.index() / lanes;
       i < num_long_rows + stride; i += num_tiles) {
    const bool is_long = i < num_long_rows;
    const LongRow* const long_row =
        is_long ? &terms.groups.long_rows[i] : nullptr;
    const int first_number = is_long ? long_row->row : i - num_long_rows;
    const int num_turns = is_long ? 1 : turns;
    int begin = 0;
    int end = 0;
    int32_t row = 0;
    Term first = {};
    if (lane < num_turns && first_number + lane * stride < num_rows) {
      const int number = first_number + lane * stride;
      begin = terms.groups.starts[number];
      end = terms.groups.starts[number + 1];
      row = terms.groups.rows[begin];
      first = ReadTerm(terms, begin);
      if (!is_long && terms.IsLong(end - begin)) end = begin;  // see above
    }
    for (int turn = 0; turn < num_turns; ++turn) {
      const int next = turn + 1 < num_turns ? turn + 1 : turn;
      prefetch(thread.Shuffle(row, next, lanes), lane);
      const RowToSum<kSize, kChunks> to_sum = {
          .terms = terms,
          .block_sums = block_sums,
          .number = first_number + turn * stride,
          .long_row = long_row,
          .begin = thread.Shuffle(begin, turn, lanes),
          .end = thread.Shuffle(end, turn, lanes),
          .row = thread.Shuffle(row, turn, lanes),
          .first = {thread.Shuffle(first.sample, turn, lanes),
                    thread.Shuffle(first.gain, turn, lanes)}};
      if (to_sum.begin == to_sum.end) continue;
      visit(to_sum, PieceOfRow<kSize, kChunks>{terms.dim, lane, lanes});
    }
  }
}

// How many tiles there are rows for.
constexpr int64_t TilesForRows(int64_t num_rows, int lanes) {
  const int turns = lanes < kRowsOfTile ? lanes : kRowsOfTile;
  return (num_rows + turns - 1) / turns;
}

// The sums of all blocks of long rows, [blocks, dim]: a kernel, of which any
// number of tiles do. A tile has a block and one column for each of its
// threads: there are few blocks, so that it matters how many terms of one are
// under way.
struct SumBlocks {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 32;
  static constexpr int kUnroll = 16;
  using Piece = PieceOfRow<1, 1>;
  RowTerms terms;
  float* block_sums;

  static constexpr int64_t NumPieces(int64_t dim) {
    return (dim + kLanes - 1) / kLanes;
  }

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t num_pieces = NumPieces(terms.dim);
    const int64_t num_blocks = terms.groups.counts->num_blocks;
    for (int64_t i = thread.number() / kLanes; i < num_blocks * num_pieces;
         i += thread.num_threads() / kLanes) {
      const int64_t b = i / num_pieces;
      const RowBlock block = terms.groups.blocks[b];
      const Piece piece{terms.dim, thread.index() % kLanes, kLanes,
                        i % num_pieces * kLanes};
      SumTerms<kUnroll>(terms, ReadTerm(terms, block.begin), block.begin,
                        block.end, piece)
          .Write(block_sums + b * terms.dim, piece);
    }
  }
};

inline const char* LaunchSumBlocks(Stream stream, const RowTerms& terms,
                                   int64_t max_row_blocks, float* block_sums) {
  return Launch(
      stream,
      NumBlocks<SumBlocks>(max_row_blocks * SumBlocks::NumPieces(terms.dim) *
                           SumBlocks::kLanes),
      SumBlocks{terms, block_sums});
}

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
