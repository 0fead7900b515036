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
#include <utility>
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

}  // namespace

const char* SortByKey(Stream stream, int64_t n, int num_bits, ToSort& keys,
                      ToSort& values, Scratch scratch) {
  if (n == 0) return nullptr;
  cub::DoubleBuffer<int32_t> key_buffers(keys.values, keys.others);
  cub::DoubleBuffer<int32_t> value_buffers(values.values, values.others);
  const char* const error = WithScratch(scratch, [&](void* data,
                                                     size_t& num_bytes) {
    return cub::DeviceRadixSort::SortPairs(
        data, num_bytes, key_buffers, value_buffers, n, 0, num_bits, stream);
  });
  keys = {key_buffers.Current(), key_buffers.Alternate()};
  values = {value_buffers.Current(), value_buffers.Alternate()};
  return error;
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

const char* SortByKey(Stream, int64_t n, int num_bits, ToSort& keys,
                      ToSort& values, Scratch) {
  if (n == 0) return nullptr;
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&keys](int32_t i) { return keys.values[i]; });
  // On a GPU each pass, of 8 bits, goes from one array to the other.
  const bool ends_in_others = (num_bits + 7) / 8 % 2 == 1;
  for (ToSort* const to_sort : {&keys, &values}) {
    std::vector<int32_t> sorted(n);
    for (int64_t i = 0; i < n; ++i) sorted[i] = to_sort->values[order[i]];
    if (ends_in_others) std::swap(to_sort->values, to_sort->others);
    std::ranges::copy(sorted, to_sort->values);
    std::fill_n(to_sort->others, n, -1);
  }
  ++Launches().of_cub;
  return nullptr;
}

const char* FindRuns(Stream, int64_t n, const int32_t* keys, int32_t no_key,
                     int32_t* starts, int32_t* count, Scratch) {
  ++Launches().of_cub;
  const BeginsRun begins_run{keys, n, no_key};
  *count = 0;
  for (int32_t i = 0; i <= n; ++i) {
    if (begins_run(i)) starts[(*count)++] = i;
  }
  return nullptr;
}

const char* SumUpTo(Stream, int64_t n, const int32_t* values, int32_t* sums,
                    Scratch) {
  if (n == 0) return nullptr;
  ++Launches().of_cub;
  std::partial_sum(values, values + n, sums);
  return nullptr;
}

#endif

}  // namespace jte::gpu
