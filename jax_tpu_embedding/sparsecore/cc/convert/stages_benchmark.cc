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
#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/fill_report.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/partition_limits.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/scratch.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {
namespace {

constexpr int64_t kBatchSize = 16384;

struct FeatureShape {
  int64_t vocabulary_size;
  int64_t valency;
};

// The workloads of benchmarks/preprocessing that it measures.
const std::vector<FeatureShape>& OneTable() {
  static const auto& shapes = *new std::vector<FeatureShape>{
      {.vocabulary_size = 1000000, .valency = 1}};
  return shapes;
}

const std::vector<FeatureShape>& Criteo() {
  static const auto& shapes = *new std::vector<FeatureShape>{
      {40000000, 3},   {39060, 2},     {17295, 1},   {7424, 2},  {20265, 6},
      {3, 1},          {7122, 1},      {1543, 1},    {63, 1},    {40000000, 7},
      {3067956, 3},    {405282, 8},    {10, 1},      {2209, 6},  {11938, 9},
      {155, 5},        {4, 1},         {976, 1},     {14, 1},    {40000000, 12},
      {40000000, 100}, {40000000, 27}, {590152, 10}, {12973, 3}, {108, 1},
      {36, 1}};
  return shapes;
}

// Zipf's law with s = 1.05 on [0, vocabulary_size), popular ids scattered.
std::vector<int32_t> ZipfIds(int64_t vocabulary_size, int64_t n,
                             uint32_t seed) {
  constexpr double kExponent = 1.0 - 1.05;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  const double largest =
      std::pow(static_cast<double>(vocabulary_size + 1), kExponent);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) {
    const double rank =
        std::pow(1.0 + uniform(random) * (largest - 1.0), 1.0 / kExponent);
    const auto row =
        std::min(static_cast<int64_t>(rank) - 1, vocabulary_size - 1);
    id = static_cast<int32_t>(row * 2654435761 % vocabulary_size);
  }
  return ids;
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

// A stack of its own for each feature, with buffers as large as the batch
// needs, and a tenth.
class Step {
 public:
  Step(const std::vector<FeatureShape>& shapes, Topology topology,
       bool has_weights) {
    for (const FeatureShape& shape : shapes) {
      const int64_t n = kBatchSize * shape.valency;
      num_ids_ += n;
      ids_.push_back(ZipfIds(shape.vocabulary_size, n, ids_.size()));
      weights_.emplace_back(n, 0.5f);
      FeatureInput input = {
          .name = "feature",
          .vocabulary_size = shape.vocabulary_size,
          .batch = {.ids = std::span<const int32_t>(ids_.back()),
                    .num_samples = kBatchSize,
                    .valency = shape.valency}};
      if (has_weights) input.batch.weights = weights_.back();
      plans_.push_back(Fit(input, topology));
    }
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
  static StackPlan Plan(const FeatureInput& input, const Topology& topology,
                        int64_t limit, int64_t cells_per_sc) {
    auto plan =
        PlanStack({.name = "stack",
                   .combiner = "sum",
                   .max_ids_per_partition = limit,
                   .max_unique_ids_per_partition = limit},
                  cells_per_sc * topology.num_sc_per_device, {input}, topology);
    if (!plan) std::abort();
    return *std::move(plan);
  }

  StackPlan Fit(const FeatureInput& input, const Topology& topology) {
    const int64_t ids_per_sc =
        input.batch.num_ids() /
        (topology.local_device_count * topology.num_sc_per_device);
    const StackPlan generous =
        Plan(input, topology, ids_per_sc,
             RoundUp(ids_per_sc + 8 * topology.num_scs(), int64_t{8}));
    Buffers buffers(generous);
    StageTimes unused;
    const int64_t cells = Convert(generous, buffers, unused);
    return Plan(input, topology, ids_per_sc,
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
  std::vector<std::vector<float>> weights_;
  std::vector<StackPlan> plans_;
  Scratch scratch_;
};

void BM_Stages(benchmark::State& state, const std::vector<FeatureShape>& shapes,
               Topology topology, bool has_weights) {
  Step step(shapes, topology, has_weights);
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

void Register(const std::string& name, const std::vector<FeatureShape>& shapes,
              Topology topology) {
  for (const bool has_weights : {false, true}) {
    benchmark::RegisterBenchmark(
        (name + (has_weights ? "/weights" : "/no weights")).c_str(),
        [&shapes, topology, has_weights](benchmark::State& state) {
          BM_Stages(state, shapes, topology, has_weights);
        })
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace jte

int main(int argc, char** argv) {
  // Large arrays are new pages each time. By default malloc starts to reuse
  // them at some point of the run.
  mallopt(M_MMAP_THRESHOLD, 1 << 17);
  jte::Register("one table, 8 x 4", jte::OneTable(), jte::kOneHost);
  jte::Register("one table, 8 of 64 x 4", jte::OneTable(), jte::kEightHosts);
  jte::Register("Criteo, 8 x 4", jte::Criteo(), jte::kOneHost);
  jte::Register("Criteo, 8 of 64 x 4", jte::Criteo(), jte::kEightHosts);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
