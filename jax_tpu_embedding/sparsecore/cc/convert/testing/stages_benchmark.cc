// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Where the converter's time goes: the stages of one step, one after the other
// on one thread, as the tasks of Convert run them.
//
//   bazel run //jax_tpu_embedding/sparsecore/cc/convert:stages_benchmark
//
// Counters are nanoseconds per id:
//   extract, sort, fill   the three stages
//   allocate              new output memory: its first touch, and its release
//
// `fill` writes memory that was touched before, as with a reused output.

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

constexpr int64_t kBatchSize = 16384;

struct FeatureShape {
  int64_t vocabulary_size;
  int64_t valency;  // if ragged, 0 to twice as many ids
};

struct Workload {
  std::vector<FeatureShape> shapes;
  double zipf = 1.05;
  bool is_ragged = false;
  const char* combiner = "sum";
  bool is_stacked = false;  // all features in one stack
};

// The workloads of benchmarks/preprocessing that differ in what stages do.
Workload OneTable() {
  return {.shapes = {{.vocabulary_size = 1000000, .valency = 1}}};
}

Workload Criteo() {
  return {
      .shapes = {{40000000, 3},   {39060, 2},     {17295, 1},   {7424, 2},
                 {20265, 6},      {3, 1},         {7122, 1},    {1543, 1},
                 {63, 1},         {40000000, 7},  {3067956, 3}, {405282, 8},
                 {10, 1},         {2209, 6},      {11938, 9},   {155, 5},
                 {4, 1},          {976, 1},       {14, 1},      {40000000, 12},
                 {40000000, 100}, {40000000, 27}, {590152, 10}, {12973, 3},
                 {108, 1},        {36, 1}}};
}

Workload Stacked() {
  return {.shapes = std::vector<FeatureShape>(
              100, {.vocabulary_size = 100000, .valency = 1}),
          .is_stacked = true};
}

Workload Ragged(int64_t mean) {
  return {.shapes = {{.vocabulary_size = 1000000, .valency = mean}},
          .is_ragged = true,
          .combiner = "mean"};
}

Workload Duplicates() {
  return {.shapes = {{.vocabulary_size = 1000000, .valency = 50}}, .zipf = 1.2};
}

// Ids in [0, vocabulary_size) by Zipf's law, hot ones scattered.
std::vector<int32_t> ZipfIds(double zipf, int64_t vocabulary_size, int64_t n,
                             uint32_t seed) {
  const double exponent = 1.0 - zipf;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  const double largest =
      std::pow(static_cast<double>(vocabulary_size + 1), exponent);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) {
    const double rank =
        std::pow(1.0 + uniform(random) * (largest - 1.0), 1.0 / exponent);
    const auto row =
        std::min(static_cast<int64_t>(rank) - 1, vocabulary_size - 1);
    id = static_cast<int32_t>(row * 2654435761 % vocabulary_size);
  }
  return ids;
}

std::vector<int64_t> RowSplits(int64_t mean, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> num_ids(0, 2 * mean);
  std::vector<int64_t> splits = {0};
  for (int64_t i = 0; i < kBatchSize; ++i) {
    splits.push_back(splits.back() + num_ids(random));
  }
  return splits;
}

// The four arrays of a stack, not written.
struct Buffers {
  explicit Buffers(const StackPlan& plan)
      : num_row_pointers(plan.topology.local_device_count *
                         RowPointersPerDevice(plan.topology, false)),
        num_cells(plan.topology.local_device_count * plan.coo_cells_per_device),
        row_pointers(new int32_t[num_row_pointers]),
        embedding_ids(new int32_t[num_cells]),
        sample_ids(new int32_t[num_cells]),
        gains(new float[num_cells]) {}

  CsrBuffers view() {
    const auto all = [](auto& array, int64_t size) {
      return std::span(array.get(), static_cast<size_t>(size));
    };
    return {.row_pointers = all(row_pointers, num_row_pointers),
            .embedding_ids = all(embedding_ids, num_cells),
            .sample_ids = all(sample_ids, num_cells),
            .gains = all(gains, num_cells)};
  }

  // Makes the system provide the memory.
  void Touch() {
    constexpr int64_t kWordsPerPage = 1024;
    for (int64_t i = 0; i < num_row_pointers; i += kWordsPerPage) {
      row_pointers[i] = 0;
    }
    for (int64_t i = 0; i < num_cells; i += kWordsPerPage) {
      embedding_ids[i] = sample_ids[i] = 0;
      gains[i] = 0.0f;
    }
    benchmark::ClobberMemory();
  }

  int64_t num_row_pointers;
  int64_t num_cells;
  std::unique_ptr<int32_t[]> row_pointers;
  std::unique_ptr<int32_t[]> embedding_ids;
  std::unique_ptr<int32_t[]> sample_ids;
  std::unique_ptr<float[]> gains;
};

// Adds up the time of a stage.
class Stopwatch {
 public:
  void Lap(double& nanoseconds) {
    const auto now = std::chrono::steady_clock::now();
    nanoseconds +=
        std::chrono::duration<double, std::nano>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

struct StageTimes {
  double extract = 0, sort = 0, fill = 0, allocate = 0;  // ns
};

// Converts what one SparseCore gets of a stack.
FillReport ConvertSparseCore(const StackPlan& plan, int64_t local_sc,
                             Buffers& buffers, Scratch& scratch,
                             SharedStats& stats, StageTimes& times) {
  const int64_t num_local_scs =
      plan.topology.local_device_count * plan.topology.num_sc_per_device;
  Stopwatch stopwatch;
  const auto extracted = ExtractIds(plan, local_sc, scratch);
  if (!extracted) std::abort();
  stopwatch.Lap(times.extract);
  const std::span<const uint64_t> sorted =
      SortElements(extracted->elements,
                   scratch.sorted_elements.Take(extracted->elements.size()),
                   plan.sort_key.num_bits());
  stopwatch.Lap(times.sort);
  const PartitionLimits limits = LimitsOf(plan);
  const PartitionCounts counts = {
      .ids = scratch.num_ids.Take(limits.num_scs),
      .unique_ids = scratch.num_unique_ids.Take(limits.num_scs)};
  const FillReport report =
      FillCsr(sorted, plan.sort_key, extracted->gains, limits,
              buffers.view().Part(local_sc, num_local_scs), counts);
  stats.Record(local_sc, counts, report.required_cells);
  stopwatch.Lap(times.fill);
  return report;
}

// Stacks with buffers as large as the batch needs, and a tenth.
class Step {
 public:
  Step(const Workload& workload, Topology topology, bool has_weights) {
    std::vector<FeatureInput> inputs;
    for (const FeatureShape& shape : workload.shapes) {
      inputs.push_back(MakeFeature(workload, shape, has_weights));
      // Where it begins in the stacked batch of all hosts.
      inputs.back().transform.row_offset =
          (std::ssize(inputs) - 1) * kBatchSize * topology.global_device_count /
          topology.local_device_count;
      num_ids_ += inputs.back().batch.num_ids();
      if (workload.is_stacked) continue;
      plans_.push_back(Fit(workload, inputs, topology));
      inputs.clear();
    }
    if (workload.is_stacked) plans_.push_back(Fit(workload, inputs, topology));
  }

  int64_t num_ids() const { return num_ids_; }

  void Run(StageTimes& times) {
    for (const StackPlan& plan : plans_) {
      Stopwatch stopwatch;
      {
        Buffers buffers(plan);
        buffers.Touch();
        stopwatch.Lap(times.allocate);
        Convert(plan, buffers, times);
        stopwatch = Stopwatch();
      }
      stopwatch.Lap(times.allocate);
    }
  }

 private:
  FeatureInput MakeFeature(const Workload& workload, const FeatureShape& shape,
                           bool has_weights) {
    const auto seed = static_cast<uint32_t>(ids_.size());
    FeatureInput input = {.name = "feature",
                          .vocabulary_size = shape.vocabulary_size};
    input.batch.num_samples = kBatchSize;
    int64_t n = kBatchSize * shape.valency;
    if (workload.is_ragged) {
      row_splits_.push_back(RowSplits(shape.valency, seed));
      input.batch.row_splits = row_splits_.back();
      n = row_splits_.back().back();
    } else {
      input.batch.valency = shape.valency;
    }
    ids_.push_back(ZipfIds(workload.zipf, shape.vocabulary_size, n, seed));
    input.batch.ids = std::span<const int32_t>(ids_.back());
    weights_.emplace_back(n, 0.5f);
    if (has_weights) input.batch.weights = weights_.back();
    return input;
  }

  static StackPlan Plan(const Workload& workload,
                        const std::vector<FeatureInput>& inputs,
                        const Topology& topology, int64_t limit,
                        int64_t cells_per_sc) {
    auto plan =
        PlanStack({.name = "stack",
                   .combiner = workload.combiner,
                   .max_ids_per_partition = limit,
                   .max_unique_ids_per_partition = limit},
                  cells_per_sc * topology.num_sc_per_device, inputs, topology);
    if (!plan) std::abort();
    return *std::move(plan);
  }

  StackPlan Fit(const Workload& workload,
                const std::vector<FeatureInput>& inputs,
                const Topology& topology) {
    int64_t num_ids = 0;
    for (const FeatureInput& input : inputs) num_ids += input.batch.num_ids();
    // SparseCores of ragged batches differ.
    const int64_t ids_per_sc =
        2 * num_ids /
        (topology.local_device_count * topology.num_sc_per_device);
    const StackPlan generous =
        Plan(workload, inputs, topology, ids_per_sc,
             RoundUp(ids_per_sc + 8 * topology.num_scs(), int64_t{8}));
    Buffers buffers(generous);
    StageTimes unused;
    const int64_t cells = Convert(generous, buffers, unused);
    return Plan(workload, inputs, topology, ids_per_sc,
                RoundUp(cells + cells / 10, int64_t{8}));
  }

  // Returns the cells that the fullest SparseCore needs.
  int64_t Convert(const StackPlan& plan, Buffers& buffers, StageTimes& times) {
    SharedStats stats(plan.topology);
    int64_t cells = 0;
    const int64_t num_local_scs =
        plan.topology.local_device_count * plan.topology.num_sc_per_device;
    for (int64_t i = 0; i < num_local_scs; ++i) {
      cells = std::max(
          cells, ConvertSparseCore(plan, i, buffers, scratch_, stats, times)
                     .required_cells);
    }
    return cells;
  }

  int64_t num_ids_ = 0;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<std::vector<int64_t>> row_splits_;
  std::vector<std::vector<float>> weights_;
  std::vector<StackPlan> plans_;
  Scratch scratch_;
};

void BM_Stages(benchmark::State& state, const Workload& workload,
               Topology topology, bool has_weights) {
  Step step(workload, topology, has_weights);
  StageTimes times;
  for (auto _ : state) step.Run(times);
  const double num_ids =
      static_cast<double>(step.num_ids() * state.iterations());
  state.counters["ids"] = static_cast<double>(step.num_ids());
  state.counters["extract"] = times.extract / num_ids;
  state.counters["sort"] = times.sort / num_ids;
  state.counters["fill"] = times.fill / num_ids;
  state.counters["allocate"] = times.allocate / num_ids;
}

constexpr Topology kOneHost = {8, 8, 4};
constexpr Topology kEightHosts = {8, 64, 4};

void Register(const std::string& name, const Workload& workload,
              Topology topology) {
  for (const bool has_weights : {false, true}) {
    benchmark::RegisterBenchmark(
        (name + (has_weights ? "/weights" : "/no weights")).c_str(),
        [workload, topology, has_weights](benchmark::State& state) {
          BM_Stages(state, workload, topology, has_weights);
        })
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace jte::convert

int main(int argc, char** argv) {
  // Large arrays are new pages each time. By default malloc starts to reuse
  // them at some point of the run.
  mallopt(M_MMAP_THRESHOLD, 1 << 17);
  jte::convert::Register("one table, 8 x 4", jte::convert::OneTable(),
                         jte::convert::kOneHost);
  jte::convert::Register("one table, 8 of 64 x 4", jte::convert::OneTable(),
                         jte::convert::kEightHosts);
  jte::convert::Register("Criteo, 8 x 4", jte::convert::Criteo(),
                         jte::convert::kOneHost);
  jte::convert::Register("Criteo, 8 of 64 x 4", jte::convert::Criteo(),
                         jte::convert::kEightHosts);
  jte::convert::Register("100 stacked features", jte::convert::Stacked(),
                         jte::convert::kOneHost);
  jte::convert::Register("ragged, mean of 20", jte::convert::Ragged(20),
                         jte::convert::kOneHost);
  jte::convert::Register("duplicates, Zipf 1.2", jte::convert::Duplicates(),
                         jte::convert::kOneHost);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
