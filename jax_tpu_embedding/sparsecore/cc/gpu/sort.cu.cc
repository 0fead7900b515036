// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"

#ifdef __CUDACC__
#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#else
#include <algorithm>
#include <numeric>
#include <vector>
#endif

#include <cstddef>
#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"

namespace jte::gpu {
namespace {

// A run begins there, or the last one ends.
struct BeginsRun {
  const int32_t* keys;
  int64_t n;
  int32_t no_key;

  JTE_DEVICE bool operator()(int32_t i) const {
    if (i == 0) return true;
    return i < n ? keys[i] != keys[i - 1] : keys[i - 1] != no_key;
  }
};

}  // namespace

#ifdef __CUDACC__

namespace {

// Calls function(data, num_bytes) as CUB wants it: without memory it says how
// much it needs.
template <typename Function>
const char* WithScratch(Scratch scratch, const Function& function) {
  size_t needed = 0;
  if (const cudaError_t error = function(nullptr, needed)) {
    return MessageOf(error);
  }
  if (needed > scratch.num_bytes) {
    return "CUB needs more scratch memory than ScratchBytes() gives it.";
  }
  return MessageOf(function(scratch.data, scratch.num_bytes));
}

const char* SortBuffers(Stream stream, int64_t n, int num_bits,
                        cub::DoubleBuffer<int32_t>& keys,
                        cub::DoubleBuffer<int32_t>& values, Scratch scratch) {
  if (n == 0) return nullptr;
  return WithScratch(scratch, [&](void* data, size_t& num_bytes) {
    return cub::DeviceRadixSort::SortPairs(data, num_bytes, keys, values, n, 0,
                                           num_bits, stream);
  });
}

// With an even number of passes they are back where they were.
const char* CopyTo(int32_t* sorted, int64_t n,
                   cub::DoubleBuffer<int32_t>& buffers, Stream stream) {
  if (n == 0 || buffers.Current() == sorted) return nullptr;
  return MessageOf(cudaMemcpyAsync(sorted, buffers.Current(),
                                   n * sizeof(int32_t),
                                   cudaMemcpyDeviceToDevice, stream));
}

}  // namespace

const char* SortByKey(Stream stream, int64_t n, int num_bits, int32_t* keys,
                      int32_t* values, int32_t* sorted_keys,
                      int32_t* sorted_values, Scratch scratch) {
  cub::DoubleBuffer<int32_t> key_buffers(keys, sorted_keys);
  cub::DoubleBuffer<int32_t> value_buffers(values, sorted_values);
  if (const char* error = SortBuffers(stream, n, num_bits, key_buffers,
                                      value_buffers, scratch)) {
    return error;
  }
  if (const char* error = CopyTo(sorted_keys, n, key_buffers, stream)) {
    return error;
  }
  return CopyTo(sorted_values, n, value_buffers, stream);
}

const char* SortValuesByKey(Stream stream, int64_t n, int num_bits,
                            int32_t* keys, int32_t* other_keys, int32_t* values,
                            int32_t* sorted_values, Scratch scratch) {
  cub::DoubleBuffer<int32_t> key_buffers(keys, other_keys);
  cub::DoubleBuffer<int32_t> value_buffers(values, sorted_values);
  if (const char* error = SortBuffers(stream, n, num_bits, key_buffers,
                                      value_buffers, scratch)) {
    return error;
  }
  return CopyTo(sorted_values, n, value_buffers, stream);
}

const char* FindRuns(Stream stream, int64_t n, const int32_t* keys,
                     int32_t no_key, int32_t* starts, int32_t* count,
                     Scratch scratch) {
  return WithScratch(scratch, [&](void* data, size_t& num_bytes) {
    return cub::DeviceSelect::If(
        data, num_bytes, thrust::counting_iterator<int32_t>(0), starts, count,
        n + 1, BeginsRun{keys, n, no_key}, stream);
  });
}

const char* SumUpTo(Stream stream, int64_t n, const int32_t* values,
                    int32_t* sums, Scratch scratch) {
  if (n == 0) return nullptr;
  return WithScratch(scratch, [&](void* data, size_t& num_bytes) {
    return cub::DeviceScan::InclusiveSum(data, num_bytes, values, sums, n,
                                         stream);
  });
}

#else

const char* SortByKey(Stream, int64_t n, int, int32_t* keys, int32_t* values,
                      int32_t* sorted_keys, int32_t* sorted_values, Scratch) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [keys](int32_t i) { return keys[i]; });
  for (int64_t i = 0; i < n; ++i) {
    sorted_keys[i] = keys[order[i]];
    sorted_values[i] = values[order[i]];
  }
  return nullptr;
}

const char* SortValuesByKey(Stream stream, int64_t n, int num_bits,
                            int32_t* keys, int32_t* other_keys, int32_t* values,
                            int32_t* sorted_values, Scratch scratch) {
  if (const char* error = SortByKey(stream, n, num_bits, keys, values,
                                    other_keys, sorted_values, scratch)) {
    return error;
  }
  // On a GPU they may be in either.
  std::fill_n(keys, n, -1);
  std::fill_n(other_keys, n, -1);
  return nullptr;
}

const char* FindRuns(Stream, int64_t n, const int32_t* keys, int32_t no_key,
                     int32_t* starts, int32_t* count, Scratch) {
  const BeginsRun begins_run{keys, n, no_key};
  *count = 0;
  for (int32_t i = 0; i <= n; ++i) {
    if (begins_run(i)) starts[(*count)++] = i;
  }
  return nullptr;
}

const char* SumUpTo(Stream, int64_t n, const int32_t* values, int32_t* sums,
                    Scratch) {
  std::partial_sum(values, values + n, sums);
  return nullptr;
}

#endif

}  // namespace jte::gpu
