// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What a lookup and an update have to do to the memory, and nothing else: the
// limit that they are compared with. With software prefetch, on several
// threads.
//
// limit.py calls it through ctypes.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#define VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define VECTOR_CLONES
#endif

namespace {

constexpr int64_t kCacheLineFloats = 16;
// As many sums as keep reading from waiting for adding.
constexpr int64_t kNumSums = 4 * kCacheLineFloats;

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

// out[s] = sum of weights[s, v] * table[ids[s, v]] for samples [begin, end).
VECTOR_CLONES
void GatherSamples(const float* __restrict table, const int32_t* ids,
                   const float* weights, float* __restrict out, int64_t begin,
                   int64_t end, int64_t valency, int64_t dim,
                   int64_t distance) {
  const int64_t last = end * valency - 1;
  for (int64_t s = begin; s < end; ++s) {
    float* __restrict pooled = out + s * dim;
    for (int64_t d = 0; d < dim; ++d) pooled[d] = 0;
    for (int64_t v = 0; v < valency; ++v) {
      const int64_t i = s * valency + v;
      const float* next = table + ids[std::min(i + distance, last)] * dim;
      for (int64_t d = 0; d < dim; d += kCacheLineFloats) {
        __builtin_prefetch(next + d, 0);
      }
      const float* row = table + ids[i] * dim;
      const float weight = weights[i];
      for (int64_t d = 0; d < dim; ++d) pooled[d] += weight * row[d];
    }
  }
}

VECTOR_CLONES
void TouchRange(float* const* tables, int64_t num_tables, const int32_t* rows,
                int64_t begin, int64_t end, int64_t dim, int64_t distance) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t next = rows[std::min(i + distance, end - 1)] * dim;
    for (int64_t k = 0; k < num_tables; ++k) {
      for (int64_t d = 0; d < dim; d += kCacheLineFloats) {
        __builtin_prefetch(tables[k] + next + d, 1);
      }
    }
    for (int64_t k = 0; k < num_tables; ++k) {
      float* row = tables[k] + rows[i] * dim;
      for (int64_t d = 0; d < dim; ++d) row[d] += 0.0f;
    }
  }
}

// A sum of the numbers [begin, end), of which the last few are left out.
VECTOR_CLONES
float ReadRange(const float* values, int64_t begin, int64_t end) {
  float sums[kNumSums] = {};
  for (int64_t i = begin; i + kNumSums <= end; i += kNumSums) {
    for (int64_t k = 0; k < kNumSums; ++k) sums[k] += values[i + k];
  }
  return std::accumulate(sums, sums + kNumSums, 0.0f);
}

}  // namespace

// Reads the row of each id and pools the rows of each sample.
extern "C" void GatherRows(const float* table, const int32_t* ids,
                           const float* weights, float* out,
                           int64_t num_samples, int64_t valency, int64_t dim,
                           int64_t prefetch_distance, int64_t num_threads) {
  CallInThreads(num_threads, [table, ids, weights, out, num_samples, valency,
                              dim, prefetch_distance, num_threads](int64_t t) {
    GatherSamples(table, ids, weights, out, num_samples * t / num_threads,
                  num_samples * (t + 1) / num_threads, valency, dim,
                  prefetch_distance);
  });
}

// Reads the `gradient_size` numbers of the gradient, then reads and writes
// `rows` of each of the tables; their values stay.
extern "C" void TouchRows(const float* gradient, int64_t gradient_size,
                          float* const* tables, int64_t num_tables,
                          const int32_t* rows, int64_t num_rows, int64_t dim,
                          int64_t prefetch_distance, int64_t num_threads) {
  CallInThreads(
      num_threads, [gradient, gradient_size, tables, num_tables, rows, num_rows,
                    dim, prefetch_distance, num_threads](int64_t t) {
        // Else the compiler leaves the reading out.
        [[maybe_unused]] volatile float sum =
            ReadRange(gradient, gradient_size * t / num_threads,
                      gradient_size * (t + 1) / num_threads);
        TouchRange(tables, num_tables, rows, num_rows * t / num_threads,
                   num_rows * (t + 1) / num_threads, dim, prefetch_distance);
      });
}
