// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A tile has a sample, and a thread 16 bytes of a row at a time, of several
// rows at once: what a lookup waits for is memory, so that loads must be under
// way while others arrive. The sums stay in registers and are written once.

#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/vector.h"

namespace jte::gpu {
namespace {

// kSize: columns of a thread. kUnroll: rows whose loads are under way.
template <typename T, int kSize, bool kIsQuantized>
struct Pool {
  static constexpr int kThreads = 256;
  static constexpr int kUnroll = 4;
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
    for (int64_t sample = thread.block() * tiles + thread.index() / lanes;
         sample < num_samples; sample += thread.num_blocks() * tiles) {
      const int begin = groups.begins[sample];
      const int end = groups.begins[sample + 1];
      for (int64_t column = int64_t{lane} * kSize; column < dim;
           column += int64_t{lanes} * kSize) {
        Store(activations + sample * dim + column, Sum(begin, end, column));
      }
    }
  }

  JTE_DEVICE Vector<float, kSize> Sum(int begin, int end,
                                      int64_t column) const {
    Vector<float, kSize> sum = {};
    if (groups.flaws->any()) {
      JTE_UNROLL
      for (int d = 0; d < kSize; ++d) sum.v[d] = __builtin_nanf("");
    }
    int i = begin;
    for (; i + kUnroll <= end; i += kUnroll) {
      Vector<T, kSize> rows[kUnroll];
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
    return sum;
  }

  JTE_DEVICE Vector<T, kSize> Row(int64_t row, int64_t column) const {
    return LoadConstant<kSize>(table + row * dim + column);
  }

  JTE_DEVICE void Add(float gain, const Vector<T, kSize>& row,
                      Vector<float, kSize>& sum) const {
    JTE_UNROLL
    for (int d = 0; d < kSize; ++d) {
      sum.v[d] += gain * Read(ToFloat(row.v[d]));
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

template <typename T, int kSize, bool kIsQuantized>
const char* LaunchPool(Stream stream, const ConstSampleGroups& groups,
                       const T* table, int64_t num_samples, int64_t dim,
                       const QuantizedTo& quantized, float* activations) {
  using Kernel = Pool<T, kSize, kIsQuantized>;
  const int lanes = LanesOfRow<kSize>(dim);
  return Launch(
      stream, NumBlocks<Kernel>(num_samples * lanes),
      Kernel{groups, table, num_samples, dim, quantized, activations, lanes});
}

}  // namespace

template <typename T>
const char* PoolSamples(Stream stream, const ConstSampleGroups& groups,
                        const T* table, int64_t num_samples, int64_t dim,
                        const QuantizedTo& quantized, float* activations) {
  constexpr int kSize = 16 / sizeof(T);
  const auto launch = dim % kSize == 0
                          ? (quantized.is_on ? LaunchPool<T, kSize, true>
                                             : LaunchPool<T, kSize, false>)
                          : (quantized.is_on ? LaunchPool<T, 1, true>
                                             : LaunchPool<T, 1, false>);
  return launch(stream, groups, table, num_samples, dim, quantized,
                activations);
}

template const char* PoolSamples(Stream, const ConstSampleGroups&, const float*,
                                 int64_t, int64_t, const QuantizedTo&, float*);
template const char* PoolSamples(Stream, const ConstSampleGroups&,
                                 const Bfloat16*, int64_t, int64_t,
                                 const QuantizedTo&, float*);
template const char* PoolSamples(Stream, const ConstSampleGroups&,
                                 const Float16*, int64_t, int64_t,
                                 const QuantizedTo&, float*);

}  // namespace jte::gpu
