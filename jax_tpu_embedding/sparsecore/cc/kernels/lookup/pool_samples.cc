// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/pool_samples.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/float_vectors.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {

// A row of a table whose values have type T.
template <typename T>
class Row {
 public:
  // From a row to the next.
  static constexpr int64_t Stride(int64_t dim) { return dim; }

  [[gnu::always_inline]] Row(const T* values, int64_t) : values_(values) {}

  // The columns from `column` on.
  template <int kLanes>
  [[gnu::always_inline]] void Read(int64_t column,
                                   Vector<float, kLanes>& floats) const {
    ReadFloats<kLanes>(values_ + column, floats);
  }

  // These columns alone: without a loop over the lines of a row, a lookup takes
  // 0.88 to 0.95 of the time.
  [[gnu::always_inline]] void Prefetch(int64_t column, int64_t size) const {
    PrefetchTableRow(values_ + column, size * sizeof(T));
  }

 private:
  const T* values_;
};

template <>
class Row<CodeWord> {
 public:
  static constexpr int64_t Stride(int64_t dim) { return CodeWordsPerRow(dim); }

  [[gnu::always_inline]] Row(const CodeWord* words, int64_t dim)
      : codes_(reinterpret_cast<const uint8_t*>(words)),
        scaling_(words + NumCodeWords(dim)) {}

  template <int kLanes>
  [[gnu::always_inline]] void Read(int64_t column,
                                   Vector<float, kLanes>& floats) const {
    Vector<uint8_t, kLanes> codes;
    std::memcpy(&codes, codes_ + column, sizeof(codes));
    Vector<uint32_t, kLanes> wide;
    Widen<uint8_t, kLanes>(codes, wide);
    floats = __builtin_convertvector((Vector<int32_t, kLanes>)wide,
                                     Vector<float, kLanes>) *
                 std::bit_cast<float>(scaling_[0]) +
             std::bit_cast<float>(scaling_[1]);
  }

  [[gnu::always_inline]] void Prefetch(int64_t column, int64_t size) const {
    PrefetchTableRow(codes_ + column, size);
    PrefetchTableRow(scaling_, 2 * sizeof(CodeWord));
  }

 private:
  const uint8_t* codes_;
  const CodeWord* scaling_;
};

// The values of rows as they are.
struct AsStored {
  template <typename Values>
  [[gnu::always_inline]] void operator()(Values&) const {}
};

// Rounded to the nearest of some values; in float32 and in this association,
// which is that of reference.lookup.
class Quantized {
 public:
  explicit Quantized(const Quantization& quantization)
      : min_(static_cast<float>(quantization.min_value)),
        max_(static_cast<float>(quantization.max_value)) {
    const auto span =
        static_cast<float>(quantization.max_value - quantization.min_value);
    const auto steps = static_cast<float>(quantization.num_buckets - 1);
    scale_ = steps / span;
    step_ = span / steps;
  }

  template <typename Values>
  [[gnu::always_inline]] void operator()(Values& values) const {
    // An array: GCC 12 makes one call for each element of a vector.
    float rounded[sizeof(values) / sizeof(float)];
    std::memcpy(rounded, &values, sizeof(values));
    for (float& value : rounded) {
      // In this order of arguments a NaN stays one.
      const float above = std::min(std::max(value, min_), max_) - min_;
      value = std::floor(above * scale_ + 0.5f) * step_ + min_;
    }
    std::memcpy(&values, rounded, sizeof(values));
  }

 private:
  float min_;
  float max_;
  float scale_;
  float step_;
};

// How many entries ahead to prefetch a row: 32 KiB of rows, which wait in the
// second-level cache and are used once. With a quarter of it a lookup takes 1.0
// to 1.05 of the time (64 columns), of Zipf ids 1.6; with twice as much, the
// same.
constexpr int64_t PoolingDistance(int64_t row_bytes) {
  return std::clamp<int64_t>(32768 / std::max<int64_t>(row_bytes, 1), 8, 192);
}

// The entries of one sample, and those whose rows to prefetch meanwhile.
struct SampleEntries {
  const WeightedRow* entries;
  int64_t begin;
  int64_t end;
  int64_t last;  // of all samples of the task
  int64_t distance;
};

// Writes the sums of the columns from `column` on, in pieces of `kWidth`, or
// with `kAdds` adds to them; returns the first column that is left. A branch
// instead of a parameter would make a lookup of one id per sample take 1.4
// times as long.
template <int kMostLanes, int kWidth, bool kAdds, typename T, typename Rows,
          typename Read>
[[gnu::always_inline]] inline int64_t SumPieces(const SampleEntries& sample,
                                                const Rows& rows, int64_t dim,
                                                const Read& read,
                                                int64_t column, float* out) {
  constexpr int kLanes = std::min(kWidth, kMostLanes);
  for (; column + kWidth <= dim; column += kWidth) {
    Vector<float, kLanes> sum[kWidth / kLanes] = {};
    if constexpr (kAdds) std::memcpy(sum, out + column, sizeof(sum));
    for (int64_t i = sample.begin; i < sample.end; ++i) {
      const int64_t next = i + sample.distance;
      if (next < sample.last) {
        Row<T>(rows[sample.entries[next].row], dim).Prefetch(column, kWidth);
      }
      const Row<T> row(rows[sample.entries[i].row], dim);
      const float gain = sample.entries[i].gain;
#pragma GCC unroll 8
      for (int k = 0; k < kWidth / kLanes; ++k) {
        Vector<float, kLanes> values;
        row.template Read<kLanes>(column + k * kLanes, values);
        read(values);
        sum[k] += gain * values;
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < kWidth / kLanes; ++k) {
      std::memcpy(out + column + k * kLanes, &sum[k], sizeof(sum[k]));
    }
  }
  return column;
}

// The same of all columns from `column` on, in pieces of `kWidth`, then of
// smaller ones.
template <int kMostLanes, int kWidth, bool kAdds, typename T, typename Rows,
          typename Read>
[[gnu::always_inline]] inline void SumColumns(const SampleEntries& sample,
                                              const Rows& rows, int64_t dim,
                                              const Read& read, int64_t column,
                                              float* out) {
  column = SumPieces<kMostLanes, kWidth, kAdds, T>(sample, rows, dim, read,
                                                   column, out);
  if constexpr (kWidth > 1) {
    constexpr int kNext = kWidth > 4 ? kWidth / 2 : 1;
    SumColumns<kMostLanes, kNext, kAdds, T>(sample, rows, dim, read, column,
                                            out);
  }
}

template <int kDim, typename T>
[[gnu::always_inline]] inline ArrayRows<T> WithDim(const ArrayRows<T>& rows) {
  return {rows.values, kDim > 0 ? Row<T>::Stride(kDim) : rows.dim};
}
template <int kDim, typename T>
[[gnu::always_inline]] inline SpreadRows<T> WithDim(const SpreadRows<T>& rows) {
  return rows;
}

// PoolSamples of `kDim` columns; 0: of any number. With `kAdds`, AddSamples.
template <int kLanes, int kDim, bool kAdds, typename T, typename Rows,
          typename Read>
[[gnu::always_inline]] inline void PoolRows(const SortedSamples& samples,
                                            int64_t first, int64_t last,
                                            const Rows& all_rows,
                                            int64_t any_dim,
                                            const Read& read_value,
                                            float* activations) {
  // Copies stay in registers, whatever is written.
  const Rows rows = WithDim<kDim>(all_rows);
  const Read read = read_value;
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  SampleEntries sample{
      .entries = samples.entries.data(),
      .begin = samples.begin(first),
      .end = 0,
      .last = samples.begin(last),
      .distance = PoolingDistance(Row<T>::Stride(dim) *
                                  static_cast<int64_t>(sizeof(T)))};
  const uint32_t* ends = samples.ends.data();
  const int64_t num_ahead =
      std::min(sample.distance, sample.last - sample.begin);
  for (int64_t i = sample.begin; i < sample.begin + num_ahead; ++i) {
    Row<T>(rows[sample.entries[i].row], dim).Prefetch(/*column=*/0, dim);
  }
  for (int64_t s = first; s < last; ++s) {
    sample.end = ends[s];
    float* out = activations + s * dim;
    // Sums take half of the registers at most. With AVX-512 more would fit, and
    // of Zipf ids a lookup of 128 columns at once takes 1.1 times as long.
    SumColumns<kLanes, std::min(64, 8 * kLanes), kAdds, T>(
        sample, rows, dim, read, /*column=*/0, out);
    sample.begin = sample.end;
  }
}

// Writes the rows of `activations` of the samples [first, last); its row 0 is
// that of sample 0 of `samples`.
//
// Rows: what has the rows of the table, of type T.
template <typename T, typename Rows, typename Read>
void PoolSamples(const SortedSamples& samples, int64_t first, int64_t last,
                 const Rows& rows, int64_t dim, const Read& read,
                 float* activations) {
  WithVectorLanes([&]<int kLanes>() __attribute__((always_inline)) {
    const auto pool = [&]<int kDim>() __attribute__((always_inline)) {
      PoolRows<kLanes, kDim, /*kAdds=*/false, T>(samples, first, last, rows,
                                                 dim, read, activations);
    };
    // Where samples have an id each, a number of columns that the compiler
    // knows is 0.7 of the time. Values that are rounded are rarely asked for.
    if constexpr (std::is_same_v<Read, AsStored>) {
      switch (dim) {
        case 32:
          return pool.template operator()<32>();
        case 64:
          return pool.template operator()<64>();
        case 128:
          return pool.template operator()<128>();
      }
    }
    return pool.template operator()<0>();
  });
}

// The same, but adds to them. It is called where samples have many ids.
template <typename T, typename Rows, typename Read>
void AddSamples(const SortedSamples& samples, int64_t first, int64_t last,
                const Rows& rows, int64_t dim, const Read& read,
                float* activations) {
  WithVectorLanes([&]<int kLanes>() __attribute__((always_inline)) {
    PoolRows<kLanes, 0, /*kAdds=*/true, T>(samples, first, last, rows, dim,
                                           read, activations);
  });
}

namespace {

template <typename T>
SamplePooler PoolerOf(std::vector<const T*> arrays, int64_t rows_per_device,
                      int64_t dim, const auto& read) {
  if (arrays.size() == 1) {
    return [rows = ArrayRows<T>{arrays[0], Row<T>::Stride(dim)}, dim, read](
               const SortedSamples& samples, int64_t first, int64_t last,
               float* activations) {
      PoolSamples<T>(samples, first, last, rows, dim, read, activations);
    };
  }
  return [arrays = std::move(arrays), rows_per_device, dim, read](
             const SortedSamples& samples, int64_t first, int64_t last,
             float* activations) {
    const SpreadRows<T> rows(arrays, rows_per_device, Row<T>::Stride(dim));
    PoolSamples<T>(samples, first, last, rows, dim, read, activations);
  };
}

// Calls make(arrays, read), for arrays of one type.
SamplePooler WithArrays(std::span<const LookupTable> tables,
                        const std::optional<Quantization>& quantization,
                        const auto& make) {
  return std::visit(
      [&quantization, &make,
       tables]<typename T>(std::span<const T>) -> SamplePooler {
        std::vector<const T*> arrays;
        for (const LookupTable& table : tables) {
          arrays.push_back(std::get<std::span<const T>>(table).data());
        }
        if (quantization) {
          return make(std::move(arrays), Quantized(*quantization));
        }
        return make(std::move(arrays), AsStored());
      },
      tables.front());
}

}  // namespace

SamplePooler MakePooler(std::span<const LookupTable> tables,
                        int64_t rows_per_device, int64_t dim,
                        const std::optional<Quantization>& quantization) {
  return WithArrays(tables, quantization,
                    [rows_per_device, dim]<typename T>(
                        std::vector<const T*> arrays, const auto& read) {
                      return PoolerOf<T>(std::move(arrays), rows_per_device,
                                         dim, read);
                    });
}

SamplePooler MakeAdder(LookupTable table, int64_t dim,
                       const std::optional<Quantization>& quantization) {
  return WithArrays(
      std::span(&table, 1), quantization,
      [dim]<typename T>(const std::vector<const T*>& arrays,
                        const auto& read) -> SamplePooler {
        return [rows = ArrayRows<T>{arrays[0], Row<T>::Stride(dim)}, dim, read](
                   const SortedSamples& samples, int64_t first, int64_t last,
                   float* activations) {
          AddSamples<T>(samples, first, last, rows, dim, read, activations);
        };
      });
}

}  // namespace jte::kernels
