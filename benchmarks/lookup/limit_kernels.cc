// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The whole work of a lookup and of an update, by a program that knows all of
// the case when it is compiled: the limit that they are compared with.
//
// It checks nothing, and needs entries that are sorted already. The sums of a
// sample or a row stay in registers, every row is read and written once. What
// is best depends on the machine and the case: how far ahead to ask for rows,
// into which cache, and in how many threads. So these are arguments, and
// limit.py takes the least.
//
// limit.py calls it through ctypes.

#include "benchmarks/lookup/limit_kernels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#define VECTOR_CLONES \
  [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define VECTOR_CLONES
#endif

namespace {

// One register of AVX-512, two of AVX2, four of others.
using Vector [[gnu::vector_size(64)]] = float;
constexpr int kLanes = 16;

constexpr float kLearningRate = 0.01f;

// Threads that wait for the next call: starting one takes as long as a tenth of
// the smallest limit.
class Threads {
 public:
  explicit Threads(int64_t size) {
    for (int64_t t = 1; t < size; ++t) {
      threads_.emplace_back([this, t](std::stop_token stop) { Run(stop, t); });
    }
  }
  ~Threads() {
    for (std::jthread& thread : threads_) thread.request_stop();
    call_.fetch_add(1);
    call_.notify_all();
  }

  // Calls work(t) for t from 0 to the number of threads; one call at a time.
  void Call(const std::function<void(int64_t)>& work) {
    work_ = &work;
    pending_.store(std::ssize(threads_));
    call_.fetch_add(1);
    call_.notify_all();
    work(0);
    for (int64_t n = pending_.load(); n != 0; n = pending_.load()) {
      pending_.wait(n);
    }
  }

 private:
  void Run(std::stop_token stop, int64_t t) {
    for (int64_t seen = 0;; ++seen) {
      call_.wait(seen);
      if (stop.stop_requested()) return;
      (*work_)(t);
      if (pending_.fetch_sub(1) == 1) pending_.notify_all();
    }
  }

  const std::function<void(int64_t)>* work_ = nullptr;
  std::atomic<int64_t> call_ = 0;
  std::atomic<int64_t> pending_ = 0;
  std::vector<std::jthread> threads_;  // last: they use the others
};

// Calls work(t) for t in [0, num_threads), which is 1 or always the same.
void CallInThreads(int64_t num_threads,
                   const std::function<void(int64_t)>& work) {
  if (num_threads == 1) return work(0);
  static Threads threads(num_threads);
  threads.Call(work);
}

// Calls work(begin, end) for ranges of [0, size), in this thread or in all of
// them, which take a range after the other: some may be slower.
void ForRanges(int64_t size, int64_t num_threads,
               const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kRangesPerThread = 16;
  if (num_threads == 1) return work(0, size);
  const int64_t num_ranges = kRangesPerThread * num_threads;
  std::atomic<int64_t> next = 0;
  CallInThreads(num_threads, [&](int64_t) {
    for (int64_t i = next++; i < num_ranges; i = next++) {
      work(size * i / num_ranges, size * (i + 1) / num_ranges);
    }
  });
}

// Asks for the columns of a row, as far as the first-level cache or only to the
// second.
template <int kWidth, bool kToFirstLevel>
[[gnu::always_inline]] inline void Prefetch(const float* row) {
  constexpr int64_t kCacheLine = 64;
#pragma GCC unroll 16
  for (int64_t b = 0; b < kWidth * int64_t{sizeof(float)}; b += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + b, 0,
                       kToFirstLevel ? 3 : 2);
  }
}

template <bool kToFirstLevel>
[[gnu::always_inline]] inline void PrefetchWhole(const float* row,
                                                 int64_t dim) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    Prefetch<kLanes, kToFirstLevel>(row + d);
  }
}

// Rows begin at any number.
[[gnu::always_inline]] inline Vector Load(const float* values) {
  Vector vector;
  std::memcpy(&vector, values, sizeof(vector));
  return vector;
}
[[gnu::always_inline]] inline void Store(Vector vector, float* values) {
  std::memcpy(values, &vector, sizeof(vector));
}

template <int kWidth>
struct Sum {
  static constexpr int kNumVectors = kWidth / kLanes;

  // sum += gain * row
  [[gnu::always_inline]] void Add(float gain, const float* row) {
#pragma GCC unroll 16
    for (int k = 0; k < kNumVectors; ++k) {
      vectors[k] += gain * Load(row + k * kLanes);
    }
  }

  Vector vectors[kNumVectors] = {};
};

// A lookup of samples that have `valency` ids each, of `dim` columns.
struct Lookup {
  const float* table;
  const int32_t* ids;
  const float* weights;
  float* out;
  int64_t valency;
  int64_t dim;
  int64_t ahead;            // ids
  int64_t samples_at_once;  // 0: all

  const float* row(int64_t i) const { return table + ids[i] * dim; }
};

// Has the ids [first, last] and their weights in a cache: one that is waited
// for between rows holds up the prefetches of rows behind it.
inline void ReadIds(const Lookup& lookup, int64_t first, int64_t last) {
  int32_t ids = 0;
  float weights = 0.0f;
  for (int64_t i = first; i <= last; i += kLanes) {
    ids ^= lookup.ids[i];
    weights += lookup.weights[i];
  }
  // Without a use, nothing would be read.
  asm volatile("" : : "r"(ids), "m"(weights));
}

// The sums of a sample in all pieces of `kWidth` columns from `column` on.
template <int kWidth, bool kToFirstLevel>
[[gnu::always_inline]] inline void PoolPieces(const Lookup& lookup,
                                              int64_t sample, int64_t last_id,
                                              int64_t& column) {
  const int64_t begin = sample * lookup.valency;
  for (; column + kWidth <= lookup.dim; column += kWidth) {
    Sum<kWidth> sum;
    for (int64_t i = begin; i < begin + lookup.valency; ++i) {
      Prefetch<kWidth, kToFirstLevel>(
          lookup.row(std::min(i + lookup.ahead, last_id)) + column);
      sum.Add(lookup.weights[i], lookup.row(i) + column);
    }
    float* out = lookup.out + sample * lookup.dim + column;
#pragma GCC unroll 16
    for (int k = 0; k < sum.kNumVectors; ++k) {
      Store(sum.vectors[k], out + k * kLanes);
    }
  }
}

// The same in what is left of a row.
[[gnu::always_inline]] inline void PoolRest(const Lookup& lookup,
                                            int64_t sample, int64_t last_id,
                                            int64_t column) {
  const int64_t begin = sample * lookup.valency;
  float sum[kLanes] = {};
  for (int64_t i = begin; i < begin + lookup.valency; ++i) {
    Prefetch<kLanes, false>(lookup.row(std::min(i + lookup.ahead, last_id)) +
                            column);
    for (int64_t d = column; d < lookup.dim; ++d) {
      sum[d - column] += lookup.weights[i] * lookup.row(i)[d];
    }
  }
  std::copy_n(sum, lookup.dim - column,
              lookup.out + sample * lookup.dim + column);
}

// out[s] = sum of weights[s, v] * table[ids[s, v]] for samples [first, last).
template <int kDim, int kWidth, bool kToFirstLevel>
[[gnu::always_inline]] inline void PoolSamples(const Lookup& of_any_dim,
                                               int64_t first, int64_t last) {
  Lookup lookup = of_any_dim;
  if constexpr (kDim > 0) lookup.dim = kDim;
  const int64_t at_once =
      lookup.samples_at_once > 0 ? lookup.samples_at_once : last - first;
  for (int64_t begin = first; begin < last; begin += at_once) {
    const int64_t end = std::min(begin + at_once, last);
    const int64_t last_id = end * lookup.valency - 1;
    if (lookup.samples_at_once > 0) {
      ReadIds(lookup, begin * lookup.valency, last_id);
      const int64_t first_id = begin * lookup.valency;
      for (int64_t i = 0; i < lookup.ahead; ++i) {
        PrefetchWhole<kToFirstLevel>(
            lookup.row(std::min(first_id + i, last_id)), lookup.dim);
      }
    }
    for (int64_t s = begin; s < end; ++s) {
      int64_t column = 0;
      if constexpr (kDim > 0) {
        PoolPieces<kWidth, kToFirstLevel>(lookup, s, last_id, column);
      } else {
        PoolPieces<kWidth, kToFirstLevel>(lookup, s, last_id, column);
        PoolPieces<kLanes, kToFirstLevel>(lookup, s, last_id, column);
        if (column < lookup.dim) PoolRest(lookup, s, last_id, column);
      }
    }
  }
}

template <int kDim, int kWidth>
VECTOR_CLONES void Pool(const Lookup& lookup, bool to_first_level,
                        int64_t first, int64_t last) {
  if (to_first_level)
    return PoolSamples<kDim, kWidth, true>(lookup, first, last);
  PoolSamples<kDim, kWidth, false>(lookup, first, last);
}

// An update of the rows of entries that are sorted by row.
struct Update {
  float* table;
  float* slot;  // Adagrad's; null: SGD
  const int32_t* rows;
  const int32_t* samples;
  const float* gains;
  const float* gradient;
  int64_t rows_ahead;     // entries
  int64_t samples_ahead;  // entries
};

[[gnu::always_inline]] inline Vector SquareRoot(Vector x) {
  for (int d = 0; d < kLanes; ++d) x[d] = std::sqrt(x[d]);
  return x;
}

// Sums and steps the columns [column, column + kWidth) of the row that entry
// `i` is of. Returns the first entry of the next row.
template <int kDim, int kWidth, bool kAdagrad, bool kToFirstLevel>
[[gnu::always_inline]] inline int64_t StepPiece(const Update& update, int64_t i,
                                                int64_t last, int64_t column) {
  const auto [table, slot, rows, samples, gains, gradient, rows_ahead,
              samples_ahead] = update;
  const int32_t row = rows[i];
  Sum<kWidth> sum;
  for (; i <= last && rows[i] == row; ++i) {
    const int64_t later = std::min(i + rows_ahead, last);
    if (later > i && rows[later] != rows[later - 1]) {
      const int64_t place = int64_t{rows[later]} * kDim + column;
      Prefetch<kWidth, kToFirstLevel>(table + place);
      if (kAdagrad) Prefetch<kWidth, kToFirstLevel>(slot + place);
    }
    const int64_t sample_ahead = samples[std::min(i + samples_ahead, last)];
    Prefetch<kWidth, true>(gradient + sample_ahead * kDim + column);
    sum.Add(gains[i], gradient + int64_t{samples[i]} * kDim + column);
  }
  float* weights = table + int64_t{row} * kDim + column;
#pragma GCC unroll 16
  for (int k = 0; k < kWidth; k += kLanes) {
    const Vector gradient_of_row = sum.vectors[k / kLanes];
    Vector step = kLearningRate * gradient_of_row;
    if constexpr (kAdagrad) {
      float* squares = slot + int64_t{row} * kDim + column + k;
      const Vector accumulator =
          Load(squares) + gradient_of_row * gradient_of_row;
      Store(accumulator, squares);
      step /= SquareRoot(accumulator);
    }
    Store(Load(weights + k) - step, weights + k);
  }
  return i;
}

template <int kDim, int kWidth, bool kAdagrad, bool kToFirstLevel>
[[gnu::always_inline]] inline void StepRows(const Update& update, int64_t begin,
                                            int64_t end) {
  for (int64_t i = begin; i < end;) {
    int64_t next = i;
    for (int64_t column = 0; column < kDim; column += kWidth) {
      next = StepPiece<kDim, kWidth, kAdagrad, kToFirstLevel>(update, i,
                                                              end - 1, column);
    }
    i = next;
  }
}

template <int kDim, int kWidth>
VECTOR_CLONES void Step(const Update& update, bool to_first_level,
                        int64_t begin, int64_t end) {
  if (update.slot != nullptr && to_first_level) {
    StepRows<kDim, kWidth, true, true>(update, begin, end);
  } else if (update.slot != nullptr) {
    StepRows<kDim, kWidth, true, false>(update, begin, end);
  } else if (to_first_level) {
    StepRows<kDim, kWidth, false, true>(update, begin, end);
  } else {
    StepRows<kDim, kWidth, false, false>(update, begin, end);
  }
}

void LookUpIn(const Lookup& lookup, int64_t num_samples, int64_t width,
              bool to_first_level, int64_t num_threads) {
  const auto pool = [&]<int kDim, int kWidth>() {
    ForRanges(num_samples, num_threads, [&](int64_t first, int64_t last) {
      Pool<kDim, kWidth>(lookup, to_first_level, first, last);
    });
  };
  switch (lookup.dim) {
    case 32:
      return pool.template operator()<32, 32>();
    case 64:
      return pool.template operator()<64, 64>();
    case 128:
      return width == 128 ? pool.template operator()<128, 128>()
                          : pool.template operator()<128, 64>();
    default:
      return pool.template operator()<0, 64>();
  }
}

}  // namespace

void LookUp(const float* table, const int32_t* ids, const float* weights,
            float* out, int64_t num_samples, int64_t valency, int64_t dim,
            int64_t width, int64_t ahead, int64_t samples_at_once,
            bool to_first_level, int64_t num_threads) {
  LookUpIn({table, ids, weights, out, valency, dim, ahead, samples_at_once},
           num_samples, width, to_first_level, num_threads);
}

bool UpdateRows(float* table, float* slot, const int32_t* rows,
                const int32_t* samples, const float* gains,
                const float* gradient, int64_t num_entries, int64_t dim,
                int64_t width, int64_t rows_ahead, int64_t samples_ahead,
                bool to_first_level, int64_t num_threads) {
  const Update update{table, slot,     rows,       samples,
                      gains, gradient, rows_ahead, samples_ahead};
  // The first entry of the first row from `i` on.
  const auto row_start = [=](int64_t i) {
    while (0 < i && i < num_entries && rows[i] == rows[i - 1]) ++i;
    return i;
  };
  const auto step = [&]<int kDim, int kWidth>() {
    ForRanges(num_entries, num_threads, [&](int64_t begin, int64_t end) {
      Step<kDim, kWidth>(update, to_first_level, row_start(begin),
                         row_start(end));
    });
    return true;
  };
  switch (dim) {
    case 16:
      return step.template operator()<16, 16>();
    case 32:
      return step.template operator()<32, 32>();
    case 64:
      return step.template operator()<64, 64>();
    case 128:
      return width == 128 ? step.template operator()<128, 128>()
                          : step.template operator()<128, 64>();
    default:
      return false;
  }
}
