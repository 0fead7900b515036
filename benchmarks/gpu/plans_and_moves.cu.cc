// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Times of the kernels without JAX: what a change of them does, in seconds
// instead of minutes.
//
//     plans_and_moves
//
// prints lines for the cases A to C of cases.py, and A by Zipf's law: us of a
// lookup and of updates, the plan and the move by themselves, both, and both as
// a CUDA graph. The seeds are not those of cases.py.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/gpu/coo.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_row.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/group_by_sample.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/sort.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/step_rows.h"

namespace {

using namespace jte::gpu;  // NOLINT: a program, not a library

constexpr int kBatches = 3;  // that take turns
constexpr int64_t kBlockSize = 512;

struct Case {
  const char* name;
  int64_t num_rows;
  int64_t batch_size;
  int64_t valency;
  int64_t dim;
  double zipf;  // 0: uniform
};

void Check(const char* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "CUDA: %s\n", error);
  std::exit(1);
}

void Check(cudaError_t error) {
  if (error != cudaSuccess) Check(cudaGetErrorString(error));
}

// Memory of the GPU.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) {
    Check(cudaMalloc(&data_, size * sizeof(T) + 1));
    Check(cudaMemset(data_, 0, size * sizeof(T)));
  }
  explicit Array(const std::vector<T>& values)
      : Array(static_cast<int64_t>(values.size())) {
    Check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice));
  }
  Array(Array&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~Array() { cudaFree(data_); }
  operator T*() const { return data_; }

 private:
  T* data_ = nullptr;
};

struct Batch {
  Array<int32_t> row_pointers;
  Array<int32_t> rows;
  Array<int32_t> samples;
  Array<float> gains;
  Array<int32_t> num_minibatches;

  CooBuffers coo() const {
    return {row_pointers, rows, samples, gains, num_minibatches};
  }
};

Batch MakeBatch(const Case& of, int seed) {
  std::mt19937_64 random(seed);
  std::vector<double> sums;  // of probabilities
  for (int64_t i = 0; of.zipf > 0 && i < of.num_rows; ++i) {
    sums.push_back((i > 0 ? sums.back() : 0.0) + std::pow(i + 1.0, -of.zipf));
  }
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < of.batch_size * of.valency; ++i) {
    int64_t row = static_cast<int64_t>(random() % of.num_rows);
    if (of.zipf > 0) {
      row = std::ranges::lower_bound(sums, uniform(random) * sums.back()) -
            sums.begin();
      row = row * 7919 % of.num_rows;  // not one beside the other
    }
    keys.push_back(row * of.batch_size + i / of.valency);
  }
  std::ranges::sort(keys);
  std::vector<int32_t> rows;
  std::vector<int32_t> samples;
  std::vector<float> gains;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && keys[i] == keys[i - 1]) {
      ++gains.back();
      continue;
    }
    rows.push_back(static_cast<int32_t>(keys[i] / of.batch_size));
    samples.push_back(static_cast<int32_t>(keys[i] % of.batch_size));
    gains.push_back(1.0f);
  }
  const auto num_entries = static_cast<int32_t>(rows.size());
  std::vector<int32_t> row_pointers(8, (num_entries + 7) / 8 * 8);
  row_pointers[0] = num_entries;
  const size_t num_cells = (keys.size() + 7) / 8 * 8;
  rows.resize(num_cells);
  samples.resize(num_cells);
  gains.resize(num_cells);
  return {Array(row_pointers), Array(rows), Array(samples), Array(gains),
          Array(std::vector<int32_t>{1})};
}

// us of run(i), of many that are under way together: a median.
double Micros(cudaStream_t stream, const std::function<void(int)>& run) {
  constexpr int kCalls = 21;
  constexpr int kRuns = 7;
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int i = 0; i < kBatches; ++i) run(i);
  std::vector<float> times(kRuns);
  for (float& milliseconds : times) {
    Check(cudaEventRecord(begin, stream));
    for (int i = 0; i < kCalls; ++i) run(i);
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
  }
  Check(cudaGetLastError());
  std::ranges::sort(times);
  return 1e3 * times[kRuns / 2] / kCalls;
}

double MicrosOfGraph(cudaStream_t stream, const std::function<void(int)>& run) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kBatches; ++i) run(i);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  return Micros(stream,
                [stream, executable](int) {
                  Check(cudaGraphLaunch(executable, stream));
                }) /
         kBatches;
}

void Print(cudaStream_t stream, const Case& of, std::string_view operation,
           const std::function<void(int)>& plan,
           const std::function<void(int)>& move) {
  const auto both = [&plan, &move](int i) {
    plan(i);
    move(i);
  };
  // In this order: a graph is recorded of kernels that have run.
  const double of_plan = Micros(stream, plan);
  const double of_move = Micros(stream, move);
  const double of_both = Micros(stream, both);
  const double of_graph = MicrosOfGraph(stream, both);
  std::printf(
      "%-6s %-16.*s plan %7.1f, move %7.1f, both %7.1f, in a graph %7.1f us\n",
      of.name, static_cast<int>(operation.size()), operation.data(), of_plan,
      of_move, of_both, of_graph);
  std::fflush(stdout);
}

void Run(cudaStream_t stream, const Case& of) {
  std::vector<Batch> batches;
  for (int seed = 0; seed < kBatches; ++seed) {
    batches.push_back(MakeBatch(of, seed));
  }
  const int64_t num_cells = (of.batch_size * of.valency + 7) / 8 * 8;
  const CooGeometry geometry{.num_row_pointers = 8,
                             .num_cells = num_cells,
                             .num_devices = 1,
                             .num_sc_per_device = 1,
                             .rows_per_shard = of.num_rows,
                             .batch_size_per_sc = of.batch_size,
                             .enable_minibatching = false};
  const auto cells = [num_cells] { return Array<int32_t>(num_cells); };
  const auto coo = [&batches](int i) { return batches[i % kBatches].coo(); };
  const Array<float> table(of.num_rows * of.dim);
  const Array<float> slots(of.num_rows * of.dim);
  const Array<float> gradient(
      std::vector<float>(of.batch_size * of.dim, 1e-3f));
  const Array<char> for_cub(ScratchBytes(num_cells));
  const Scratch cub{for_cub, static_cast<size_t>(ScratchBytes(num_cells))};

  {
    const Array<int32_t> rows = cells(), samples = cells(), places = cells(),
                         others = cells(), has_long_samples(1),
                         begins(of.batch_size + 1), sorted_rows = cells();
    const Array<float> gains(num_cells), activations(of.batch_size * of.dim);
    const Array<Flaws> flaws(1);
    Print(
        stream, of, "lookup",
        [&](int i) {
          Check(GroupBySample(
              stream, coo(i), geometry,
              {rows, samples, places, others, has_long_samples, {}, cub},
              {begins, sorted_rows, gains, flaws}));
        },
        [&](int) {
          Check(PoolSamples<float>(stream, {begins, sorted_rows, gains, flaws},
                                   num_cells, table, of.batch_size, of.dim, {},
                                   activations));
        });
  }

  const int64_t max_blocks = MaxRowBlocks(num_cells, kBlockSize, 1);
  const Array<float> block_sums(max_blocks * of.dim);
  const Array<int32_t> rows = cells(), samples = cells(), starts(num_cells + 1);
  const Array<RowBlock> blocks(max_blocks);
  const Array<LongRow> long_rows(MaxLongRows(num_cells, kBlockSize));
  const Array<GroupCounts> counts(1);
  const Array<float> number(std::vector<float>{0.01f});
  Optimizer optimizer{};
  for (Number& hyperparameter : optimizer.hyperparameters) {
    hyperparameter.at = number;
  }
  for (const std::string_view rule : {"sgd", "adagrad", "rowwise_adagrad"}) {
    Print(
        stream, of, rule,
        [&](int i) {
          Check(GroupByRow(
              stream, coo(i), geometry, kBlockSize,
              {nullptr, nullptr, nullptr, {}, cub},
              {rows, samples, starts, nullptr, blocks, long_rows, counts}));
        },
        // Of the last plan, whichever batch it was of.
        [&](int i) {
          Check(StepRows(
              stream, rule,
              {.groups = {rows, samples, starts, nullptr, blocks, long_rows,
                          counts},
               .cell_gains = batches[i % kBatches].gains,
               .gradient = gradient,
               .dim = of.dim,
               .batch_size_per_sc = of.batch_size,
               .has_one_source = true,
               .block_size = kBlockSize,
               .num_cells = num_cells},
              max_blocks, block_sums, optimizer,
              {.table = table, .type = TableType::kFloat, .slots = {slots}}));
        });
  }
}

}  // namespace

int main() {
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  for (const Case& of : {Case{"A", 1 << 20, 16384, 20, 128, 0.0},
                         Case{"B", 10'000'000, 65536, 26, 128, 0.0},
                         Case{"C", 10'000'000, 1'700'000, 1, 32, 0.0},
                         Case{"A,Zipf", 1 << 20, 16384, 20, 128, 1.05}}) {
    Run(stream, of);
  }
}
