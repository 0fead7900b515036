// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/sum_rows.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/pack_messages.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_sums.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::gpu {
namespace {

template <int kSize, int kChunks>
struct WriteSums {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = kChunks == 1 ? 3 : 2;
  static constexpr bool kExchanges = true;
  using Sum = Sums<kSize, kChunks>;
  using Piece = PieceOfRow<kSize, kChunks>;
  using Row = RowToSum<kSize, kChunks>;

  RowTerms terms;
  const float* block_sums;
  RowSums results;
  int lanes;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const bool all_fit = results.requests != nullptr ||
                         terms.groups.counts->num_rows() <= results.num_places;
    ForEachRow<kSize, kChunks>(
        thread, lanes, kThreads, terms, block_sums, [](int64_t, int) {},
        [this, all_fit](const Row& row, Piece piece) {
          const int64_t place =
              results.requests != nullptr ? row.row : row.number;
          if (place >= results.num_places) return;
          if (piece.lane == 0) {
            results.rows[place] = static_cast<int32_t>(row.row);
          }
          for (; piece.is_in_row(); piece = piece.Next()) {
            const Sum sum =
                all_fit ? row.Sum(piece) : Sum::All(__builtin_nanf(""));
            sum.Write(results.sums + place * terms.dim, piece);
          }
        });
    const int64_t tiles = kThreads / lanes;
    for (int64_t place = thread.block() * tiles + thread.index() / lanes;
         place < results.num_places; place += thread.num_blocks() * tiles) {
      const bool has_row = results.requests != nullptr
                               ? results.requests[place] != kNoRow
                               : place < terms.groups.counts->num_rows();
      if (has_row) continue;
      Piece piece{terms.dim, thread.index() % lanes, lanes};
      if (piece.lane == 0) results.rows[place] = kPaddingId;
      for (; piece.is_in_row(); piece = piece.Next()) {
        Sum::Zero().Write(results.sums + place * terms.dim, piece);
      }
    }
  }
};

}  // namespace

const char* SumRows(Stream stream, const RowTerms& terms,
                    int64_t max_row_blocks, float* block_sums,
                    const RowSums& results) {
  if (const char* error =
          LaunchSumBlocks(stream, terms, max_row_blocks, block_sums)) {
    return error;
  }
  return ForWidth(terms.dim, [&]<int kSize, int kChunks>(int lanes) {
    using Kernel = WriteSums<kSize, kChunks>;
    const int64_t most = terms.num_cells > results.num_places
                             ? terms.num_cells
                             : results.num_places;
    return Launch(stream, NumBlocks<Kernel>(most * lanes),
                  Kernel{terms, block_sums, results, lanes});
  });
}

}  // namespace jte::gpu
