// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the memory of a GPU allows for rows that are anywhere in a table, each
// once and in their order, as an update has them: the limit of kernels that
// read or change such rows. A copy of neighbouring bytes is none.
//
//     random_rows
//
// prints a line for each of the cases of cases.py with rows of 128 columns: the
// rate of kernels that do nothing else and have one, two or four rows of a warp
// under way, and the highest of them.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 32;
constexpr int kBytesOfRow = kLanes * sizeof(float4);

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// A warp has kUnroll rows at once, of kTables tables.
template <int kTables, bool kWrites, int kUnroll>
__global__ __launch_bounds__(kThreads) void Touch(const int* rows, int num_rows,
                                                  float4* first,
                                                  float4* second) {
  const int lane = threadIdx.x % kLanes;
  const int num_warps = gridDim.x * (kThreads / kLanes);
  const int warp = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  float4* const tables[] = {first, second};
  float sum = 0.0f;
  for (int i = warp * kUnroll; i < num_rows; i += num_warps * kUnroll) {
    float4 values[kTables][kUnroll];
    int64_t places[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int row = rows[i + k < num_rows ? i + k : num_rows - 1];
      places[k] = int64_t{row} * kLanes + lane;
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
#pragma unroll
      for (int t = 0; t < kTables; ++t) values[t][k] = tables[t][places[k]];
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
#pragma unroll
      for (int t = 0; t < kTables; ++t) {
        float4 x = values[t][k];
        sum += x.x + x.y + x.z + x.w;
        x.x += 1.0f;
        if (kWrites && i + k < num_rows) tables[t][places[k]] = x;
      }
    }
  }
  if (!kWrites && sum == -1.0f) first[0].x = sum;  // so that it is needed
}

struct Rows {
  std::vector<int*> of_batch;  // on the GPU
  int num_rows;                // of each, about
};

Rows MakeRows(int table_size, int num_ids) {
  Rows result{{}, 0};
  for (int batch = 0; batch < 3; ++batch) {
    std::mt19937_64 random(batch);
    std::vector<int> rows(num_ids);
    for (int& row : rows) row = static_cast<int>(random() % table_size);
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    const int size = static_cast<int>(rows.size());
    result.num_rows = batch == 0 ? size : std::min(result.num_rows, size);
    int* data;
    Check(cudaMalloc(&data, rows.size() * sizeof(int)));
    Check(cudaMemcpy(data, rows.data(), rows.size() * sizeof(int),
                     cudaMemcpyHostToDevice));
    result.of_batch.push_back(data);
  }
  return result;
}

// GB/s, read and written, of calls with batches in turn: a median.
template <int kTables, bool kWrites, int kUnroll>
double Rate(const Rows& rows, float4* first, float4* second) {
  constexpr int kCalls = 20;
  constexpr int kRuns = 7;
  const int num_warps = (rows.num_rows + kUnroll - 1) / kUnroll;
  const int num_blocks =
      (num_warps + kThreads / kLanes - 1) / (kThreads / kLanes);
  const auto run = [&](int i) {
    Touch<kTables, kWrites, kUnroll><<<num_blocks, kThreads>>>(
        rows.of_batch[i % rows.of_batch.size()], rows.num_rows, first, second);
  };
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) run(i);
  std::vector<float> times(kRuns);
  for (float& milliseconds : times) {
    Check(cudaEventRecord(begin));
    for (int i = 0; i < kCalls; ++i) run(i);
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
  }
  Check(cudaGetLastError());
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  const double bytes =
      1.0 * kTables * (kWrites ? 2 : 1) * kBytesOfRow * rows.num_rows * kCalls;
  return bytes / (times[kRuns / 2] * 1e6);
}

template <int kTables, bool kWrites>
void Print(const char* name, const Rows& rows, float4* first, float4* second) {
  const double rates[] = {
      Rate<kTables, kWrites, 1>(rows, first, second),
      Rate<kTables, kWrites, 2>(rows, first, second),
      Rate<kTables, kWrites, 4>(rows, first, second),
  };
  std::printf("%s, %d rows of %d tables %s: %.0f GB/s at most, of", name,
              rows.num_rows, kTables, kWrites ? "changed" : "read",
              *std::max_element(std::begin(rates), std::end(rates)));
  for (const double rate : rates) std::printf(" %.0f", rate);
  std::printf("\n");
}

}  // namespace

int main() {
  constexpr int kTableSize = 10'000'000;
  float4* first;
  float4* second;
  for (float4** table : {&first, &second}) {
    Check(cudaMalloc(table, int64_t{kTableSize} * kBytesOfRow));
    Check(cudaMemset(*table, 0, int64_t{kTableSize} * kBytesOfRow));
  }
  const struct {
    const char* name;
    int table_size;
    int num_ids;
  } cases[] = {{"A", 1 << 20, 16384 * 20}, {"B", kTableSize, 65536 * 26}};
  for (const auto& of : cases) {
    const Rows rows = MakeRows(of.table_size, of.num_ids);
    Print<1, false>(of.name, rows, first, second);
    Print<1, true>(of.name, rows, first, second);
    Print<2, true>(of.name, rows, first, second);
  }
}
