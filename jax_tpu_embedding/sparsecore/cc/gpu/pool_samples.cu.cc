// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A tile has a sample, and a thread 16 bytes of a row (four codes) at a time,
// of several rows at once: what a lookup waits for is memory, so that loads
// must be under way while others arrive. The sums stay in registers and are
// written once.

#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/vector.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"

namespace jte::gpu {
namespace {

using kernels::CodeWord;

// kSize neighbouring values of a row, as they are in memory.
template <typename T, int kSize>
class Values {
 public:
  Values() = default;
  JTE_DEVICE Values(const T* table, int64_t dim, int64_t row, int64_t column)
      : values_(LoadConstant<kSize>(table + row * dim + column)) {}

  JTE_DEVICE float operator[](int d) const { return ToFloat(values_.v[d]); }

 private:
  Vector<T, kSize> values_;
};

// Of codes: those of a word, or one of them.
template <int kSize>
class Values<CodeWord, kSize> {
 public:
  Values() = default;
  JTE_DEVICE Values(const CodeWord* table, int64_t dim, int64_t row,
                    int64_t column) {
    static_assert(kSize == 4 || kSize == 1);
    const auto* const words = reinterpret_cast<const uint32_t*>(
        table + row * kernels::CodeWordsPerRow(dim));
    const int64_t scaling = kernels::NumCodeWords(dim);
    const auto word = LoadConstant<1>(words + column / 4);
    codes_ = word.v[0] >> (column % 4 * 8);
    scale_ = std::bit_cast<float>(LoadConstant<1>(words + scaling).v[0]);
    bias_ = std::bit_cast<float>(LoadConstant<1>(words + scaling + 1).v[0]);
  }

  JTE_DEVICE float operator[](int d) const {
    return static_cast<float>(codes_ >> (d * 8) & 0xff) * scale_ + bias_;
  }

 private:
  uint32_t codes_;
  float scale_;
  float bias_;
};

// kSize: columns of a thread. kSamples: those of a tile whose first rows are
// read together. kUnroll: rows of a sample whose loads are under way.
template <typename T, int kSize, int kSamples, bool kIsQuantized>
struct Pool {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 4;
  static constexpr int kMinBlocks = kSamples > 1 ? 3 : 4;
  ConstSampleGroups groups;
  const T* table;
  int64_t num_samples;
  int64_t dim;
  QuantizedTo quantized;
  float* activations;
  int lanes;

  JTE_DEVICE void operator()(const Thread& thread) const {
    const int64_t tiles = kThreads / lanes;
    const int lane = thread.index() % lanes;
    const int64_t tile = thread.block() * tiles + thread.index() / lanes;
    for (int64_t first = tile * kSamples; first < num_samples;
         first += thread.num_blocks() * tiles * kSamples) {
      int begins[kSamples + 1];
      JTE_UNROLL
      for (int k = 0; k <= kSamples; ++k) {
        begins[k] =
            groups.begins[first + k < num_samples ? first + k : num_samples];
      }
      for (int64_t column = int64_t{lane} * kSize; column < dim;
           column += int64_t{lanes} * kSize) {
        PoolColumns(first, begins, column);
      }
    }
  }

  JTE_DEVICE void PoolColumns(int64_t first, const int (&begins)[kSamples + 1],
                              int64_t column) const {
    if constexpr (kSamples == 1) {
      auto sum = Zero();
      AddRows(begins[0], begins[1], column, sum);
      Store(activations + first * dim + column, sum);
    } else {
      int32_t first_rows[kSamples];
      float gains[kSamples];
      JTE_UNROLL
      for (int k = 0; k < kSamples; ++k) {
        const bool has_rows = begins[k] < begins[k + 1];
        first_rows[k] = has_rows ? groups.rows[begins[k]] : 0;
        gains[k] = has_rows ? groups.gains[begins[k]] : 0.0f;
      }
      Values<T, kSize> rows[kSamples];
      JTE_UNROLL
      for (int k = 0; k < kSamples; ++k) rows[k] = Row(first_rows[k], column);
      JTE_UNROLL
      for (int k = 0; k < kSamples; ++k) {
        if (first + k >= num_samples) return;
        auto sum = Zero();
        if (begins[k] < begins[k + 1]) {
          Add(gains[k], rows[k], sum);
          AddRows(begins[k] + 1, begins[k + 1], column, sum);
        }
        Store(activations + (first + k) * dim + column, sum);
      }
    }
  }

  // The sum of no rows; NaN if the buffers have flaws.
  JTE_DEVICE Vector<float, kSize> Zero() const {
    Vector<float, kSize> sum = {};
    if (groups.flaws->any()) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) sum.v[d] = __builtin_nanf("");
    }
    return sum;
  }

  // Those of the entries [begin, end), from left to right.
  JTE_DEVICE void AddRows(int begin, int end, int64_t column,
                          Vector<float, kSize>& sum) const {
    int i = begin;
    for (; i + kUnroll <= end; i += kUnroll) {
      Values<T, kSize> rows[kUnroll];
      float gains[kUnroll];
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) {
        rows[k] = Row(groups.rows[i + k], column);
        gains[k] = groups.gains[i + k];
      }
      JTE_UNROLL
      for (int k = 0; k < kUnroll; ++k) Add(gains[k], rows[k], sum);
    }
    for (; i < end; ++i) Add(groups.gains[i], Row(groups.rows[i], column), sum);
  }

  JTE_DEVICE Values<T, kSize> Row(int64_t row, int64_t column) const {
    return Values<T, kSize>(table, dim, row, column);
  }

  JTE_DEVICE void Add(float gain, const Values<T, kSize>& row,
                      Vector<float, kSize>& sum) const {
    JTE_UNROLL
    for (int d = 0; d < kSize; ++d) {
      sum.v[d] += gain * Read(row[d]);
    }
  }

  JTE_DEVICE float Read(float value) const {
    if constexpr (kIsQuantized) {
      // In this order of arguments a NaN stays one.
      const float above =
          std::min(std::max(value, quantized.min), quantized.max) -
          quantized.min;
      return std::floor(above * quantized.scale + 0.5f) * quantized.step +
             quantized.min;
    }
    return value;
  }
};

struct Shape {
  int64_t num_samples;
  int64_t num_cells;
  int64_t dim;
};

template <typename T, int kSize, int kSamples, bool kIsQuantized>
const char* LaunchPool(Stream stream, const ConstSampleGroups& groups,
                       const T* table, const Shape& shape,
                       const QuantizedTo& quantized, float* activations) {
  using Kernel = Pool<T, kSize, kSamples, kIsQuantized>;
  const int lanes = LanesOfRow<kSize>(shape.dim);
  const int64_t num_tiles = (shape.num_samples + kSamples - 1) / kSamples;
  return Launch(stream, NumBlocks<Kernel>(num_tiles * lanes),
                Kernel{groups, table, shape.num_samples, shape.dim, quantized,
                       activations, lanes});
}

template <typename T, int kSize, int kSamples>
auto LaunchFor(const QuantizedTo& quantized) {
  return quantized.is_on ? LaunchPool<T, kSize, kSamples, true>
                         : LaunchPool<T, kSize, kSamples, false>;
}

template <typename T, int kSize>
auto LaunchFor(const Shape& shape, const QuantizedTo& quantized) {
  // The rows of such a sample are too few loads to have under way.
  constexpr int kFewEntries = 4;
  constexpr int kSamples = kSize == 8 ? 2 : 4;  // as registers suffice
  // Where there are no entries there may be no row that could be read.
  const bool has_few =
      0 < shape.num_cells && shape.num_cells <= kFewEntries * shape.num_samples;
  return has_few ? LaunchFor<T, kSize, kSamples>(quantized)
                 : LaunchFor<T, kSize, 1>(quantized);
}

}  // namespace

template <typename T>
const char* PoolSamples(Stream stream, const ConstSampleGroups& groups,
                        int64_t num_cells, const T* table, int64_t num_samples,
                        int64_t dim, const QuantizedTo& quantized,
                        float* activations) {
  constexpr int kSize = std::is_same_v<T, CodeWord> ? 4 : 16 / sizeof(T);
  const Shape shape = {num_samples, num_cells, dim};
  const auto launch = dim % kSize == 0 ? LaunchFor<T, kSize>(shape, quantized)
                                       : LaunchFor<T, 1>(shape, quantized);
  return launch(stream, groups, table, shape, quantized, activations);
}

template const char* PoolSamples(Stream, const ConstSampleGroups&, int64_t,
                                 const float*, int64_t, int64_t,
                                 const QuantizedTo&, float*);
template const char* PoolSamples(Stream, const ConstSampleGroups&, int64_t,
                                 const Bfloat16*, int64_t, int64_t,
                                 const QuantizedTo&, float*);
template const char* PoolSamples(Stream, const ConstSampleGroups&, int64_t,
                                 const Float16*, int64_t, int64_t,
                                 const QuantizedTo&, float*);
template const char* PoolSamples(Stream, const ConstSampleGroups&, int64_t,
                                 const CodeWord*, int64_t, int64_t,
                                 const QuantizedTo&, float*);

}  // namespace jte::gpu
