// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/table_rows.h"

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/vector.h"

namespace jte::gpu {
namespace {

JTE_DEVICE float NotANumber(float) { return __builtin_nanf(""); }
template <typename T>
JTE_DEVICE T NotANumber(T) {
  return RoundToNearest<T>(__builtin_nanf(""));
}

// A tile has a row. kWrites: to the table, instead of from it.
template <typename T, int kSize, bool kWrites>
struct CopyRows {
  static constexpr int kThreads = 256;
  RowsOfTable rows;
  const T* from;
  T* to;
  int lanes;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t tiles = kThreads / lanes;
    for (int64_t i = thread.block() * tiles + thread.index() / lanes;
         i < rows.size; i += thread.num_blocks() * tiles) {
      const int64_t row = rows.rows[i];
      const bool is_row = 0 <= row && row < rows.num_table_rows;
      if (kWrites && !is_row) continue;
      const T* source = from + (kWrites ? i : row) * rows.dim;
      T* target = to + (kWrites ? row : i) * rows.dim;
      for (int64_t column = int64_t{thread.index() % lanes} * kSize;
           column < rows.dim; column += int64_t{lanes} * kSize) {
        Store(target + column,
              is_row ? LoadConstant<kSize>(source + column) : None());
      }
    }
  }

  static JTE_DEVICE Vector<T, kSize> None() {
    Vector<T, kSize> none;
    JTE_UNROLL
    for (int d = 0; d < kSize; ++d) none.v[d] = NotANumber(T{});
    return none;
  }
};

template <bool kWrites, typename T>
const char* Copy(Stream stream, const RowsOfTable& rows, const T* from, T* to) {
  const auto launch = [&]<int kSize>() {
    using Kernel = CopyRows<T, kSize, kWrites>;
    const int lanes = LanesOfRow<kSize>(rows.dim);
    return Launch(stream, NumBlocks<Kernel>(rows.size * lanes),
                  Kernel{rows, from, to, lanes});
  };
  constexpr int kSize = 16 / sizeof(T);
  return rows.dim % kSize == 0 ? launch.template operator()<kSize>()
                               : launch.template operator()<1>();
}

}  // namespace

template <typename T>
const char* ReadRows(Stream stream, const RowsOfTable& rows, const T* table,
                     T* values) {
  return Copy<false>(stream, rows, table, values);
}

template <typename T>
const char* WriteRows(Stream stream, const RowsOfTable& rows, const T* values,
                      T* table) {
  return Copy<true>(stream, rows, values, table);
}

template const char* ReadRows(Stream, const RowsOfTable&, const float*, float*);
template const char* ReadRows(Stream, const RowsOfTable&, const Bfloat16*,
                              Bfloat16*);
template const char* ReadRows(Stream, const RowsOfTable&, const Float16*,
                              Float16*);
template const char* WriteRows(Stream, const RowsOfTable&, const float*,
                               float*);
template const char* WriteRows(Stream, const RowsOfTable&, const Bfloat16*,
                               Bfloat16*);
template const char* WriteRows(Stream, const RowsOfTable&, const Float16*,
                               Float16*);

}  // namespace jte::gpu
