// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Lookup and update of a table of 1 M x 64 on one thread, beside the limit of
// the machine: touching the rows that must move, in random order, with the same
// prefetch.
//
//   bazel run -c opt
//   //jax_tpu_embedding/sparsecore/cc/kernels:lookup_update_benchmark
//
// read_ids is what a lookup from ids does before it reads rows. The limit of a
// lookup reads the row of each entry. That of an update reads
// the gradient of each entry's sample, and reads and writes each distinct row,
// of the table and of the slots. items_per_second counts entries, so that the
// ratio of a kernel's to its limit's is the share that the kernel reaches.
// Compare only inside one run, and best with repetitions and
// --benchmark_enable_random_interleaving: the machine's memory is shared.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "benchmark/benchmark.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"

namespace jte::kernels {
namespace {

constexpr int64_t kNumRows = int64_t{1} << 20;
constexpr int64_t kDim = 64;
// Batches in turn, so that the rows of one are not in a cache when it is next.
constexpr int64_t kNumBatches = 8;

struct Workload {
  std::string_view name;
  int64_t batch_size;
  int64_t ids_per_sample;
  double zipf_exponent;  // 0: uniform
};

constexpr Workload kWorkloads[] = {
    {"16384x1_uniform", 16384, 1, 0.0},   {"16384x1_zipf", 16384, 1, 1.05},
    {"16384x20_uniform", 16384, 20, 0.0}, {"16384x20_zipf", 16384, 20, 1.05},
    {"4096x100_uniform", 4096, 100, 0.0}, {"4096x100_zipf", 4096, 100, 1.05},
};

// What the converter writes for one SparseCore, and the ids as they came.
struct Batch {
  std::vector<int32_t> row_pointers;
  std::vector<int32_t> embedding_ids;
  std::vector<int32_t> sample_ids;
  std::vector<float> gains;
  std::vector<int32_t> ids;           // in the order of samples
  std::vector<int32_t> distinct_ids;  // in random order

  CooBuffers buffers() const {
    return {row_pointers, embedding_ids, sample_ids, gains};
  }
};

Batch MakeBatch(const Workload& workload, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  const auto next_id = [&random, &uniform, &workload] {
    if (workload.zipf_exponent == 0) {
      return static_cast<int32_t>(random() % kNumRows);
    }
    // The inverse of a continuous Zipf distribution; the odd factor scatters
    // hot rows over the table.
    const double power = 1.0 - workload.zipf_exponent;
    const double rank = std::pow(
        uniform(random) * (std::pow(kNumRows, power) - 1.0) + 1.0, 1.0 / power);
    return static_cast<int32_t>(static_cast<int64_t>(rank) * 0x9E3779B1 %
                                kNumRows);
  };
  const int64_t size = workload.batch_size * workload.ids_per_sample;
  Batch batch;
  batch.ids.resize(size);
  std::ranges::generate(batch.ids, next_id);

  std::vector<int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&batch](int32_t i) { return batch.ids[i]; });
  for (const int32_t i : order) {
    batch.embedding_ids.push_back(batch.ids[i]);
    batch.sample_ids.push_back(
        static_cast<int32_t>(i / workload.ids_per_sample));
    batch.gains.push_back(static_cast<float>(uniform(random)));
  }
  batch.row_pointers.assign(8, static_cast<int32_t>(size));
  batch.distinct_ids = batch.embedding_ids;
  const auto surplus = std::ranges::unique(batch.distinct_ids);
  batch.distinct_ids.erase(surplus.begin(), surplus.end());
  std::ranges::shuffle(batch.distinct_ids, random);
  return batch;
}

struct Data {
  std::vector<Batch> batches;
  CooGeometry geometry;
  std::vector<float> gradient;  // and room for activations
};

// One workload at a time, made when it is first asked for.
Data& GetData(int64_t index) {
  static int64_t current = -1;
  static Data data;
  if (index == current) return data;
  const Workload& workload = kWorkloads[index];
  data.batches.clear();
  for (int64_t i = 0; i < kNumBatches; ++i) {
    data.batches.push_back(MakeBatch(workload, i));
  }
  data.geometry = {.num_sc_per_device = 1,
                   .rows_per_shard = kNumRows,
                   .batch_size_per_sc = workload.batch_size,
                   .enable_minibatching = false,
                   .num_minibatches = 1};
  data.gradient.assign(workload.batch_size * kDim, 1e-3f);
  current = index;
  return data;
}

// The table, and as many slots as any rule has.
std::vector<float>& GetTable(int64_t k) {
  static std::vector<float> tables[3];
  if (tables[k].empty()) {
    tables[k].assign(kNumRows * kDim, 0.5f);
    // As ffi/table_memory.h does.
    UseHugePages(std::as_writable_bytes(std::span(tables[k])));
  }
  return tables[k];
}

constexpr int64_t kRowBytes = kDim * sizeof(float);
constexpr int64_t kDistance = PrefetchDistance(kRowBytes);

JTE_VECTOR_CLONES
float ReadRows(const float* table, std::span<const int32_t> rows) {
  float sum[kDim] = {};
  const int64_t size = std::ssize(rows);
  for (int64_t i = 0; i < size; ++i) {
    PrefetchTableRow(table + rows[std::min(i + kDistance, size - 1)] * kDim,
                     kRowBytes);
    const float* row = table + rows[i] * kDim;
    for (int64_t d = 0; d < kDim; ++d) sum[d] += row[d];
  }
  return std::accumulate(sum, sum + kDim, 0.0f);
}

JTE_VECTOR_CLONES
void WriteRows(std::span<float* const> tables, std::span<const int32_t> rows) {
  const int64_t size = std::ssize(rows);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t next = rows[std::min(i + kDistance, size - 1)] * kDim;
    for (float* table : tables) PrefetchTableRow(table + next, kRowBytes);
    for (float* table : tables) {
      float* row = table + rows[i] * kDim;
      for (int64_t d = 0; d < kDim; ++d) row[d] += 1e-6f;
    }
  }
}

void BM_LookupLimit(benchmark::State& state, int64_t workload) {
  Data& data = GetData(workload);
  const std::vector<float>& table = GetTable(0);
  int64_t i = 0;
  for (auto _ : state) {
    const Batch& batch = data.batches[i++ % kNumBatches];
    benchmark::DoNotOptimize(ReadRows(table.data(), batch.ids));
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
}

void BM_Lookup(benchmark::State& state, int64_t workload) {
  Data& data = GetData(workload);
  const std::vector<float>& table = GetTable(0);
  InlineExecutor executor;
  int64_t i = 0;
  for (auto _ : state) {
    const auto done =
        Lookup(data.batches[i++ % kNumBatches].buffers(), data.geometry, table,
               kDim, /*quantization=*/std::nullopt, data.gradient, executor);
    if (!done) state.SkipWithError(done.error().message.c_str());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
  std::ranges::fill(data.gradient, 1e-3f);
}

// Of the ids of each batch, with weights or without.
std::vector<convert::StackPlan> MakePlans(const Data& data, int64_t workload,
                                          bool has_weights) {
  std::vector<convert::StackPlan> plans;
  for (const Batch& batch : data.batches) {
    convert::FeatureInput feature = {
        .name = "feature",
        .vocabulary_size = kNumRows,
        .batch = {.ids = std::span(batch.ids),
                  .num_samples = kWorkloads[workload].batch_size,
                  .valency = kWorkloads[workload].ids_per_sample}};
    if (has_weights) feature.batch.weights = batch.gains;
    plans.push_back(*convert::PlanStack({.name = "stack", .combiner = "sum"},
                                        /*coo_cells_per_device=*/8, {feature},
                                        {.local_device_count = 1,
                                         .global_device_count = 1,
                                         .num_sc_per_device = 1}));
  }
  return plans;
}

void BM_LookupIds(benchmark::State& state, int64_t workload, bool has_weights) {
  Data& data = GetData(workload);
  const std::vector<float>& table = GetTable(0);
  const LookupTable values = std::span(table);
  const auto plans = MakePlans(data, workload, has_weights);
  InlineExecutor executor;
  int64_t i = 0;
  for (auto _ : state) {
    const auto done =
        LookupIds(plans[i++ % kNumBatches], {&values, 1}, kNumRows, kDim,
                  /*quantization=*/std::nullopt, data.gradient, executor);
    if (!done) state.SkipWithError(done.error().message.c_str());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
  std::ranges::fill(data.gradient, 1e-3f);
}

// What of it comes before any row is read, 4,000 ids at a time as there.
void BM_ReadIds(benchmark::State& state, int64_t workload, bool has_weights) {
  Data& data = GetData(workload);
  const int64_t batch_size = kWorkloads[workload].batch_size;
  const int64_t ids_per_sample = kWorkloads[workload].ids_per_sample;
  const auto plans = MakePlans(data, workload, has_weights);
  const RowNumbers numbers(plans.front(), kNumRows);
  const int64_t samples_at_once = 4000 / ids_per_sample;
  IdEntries entries;
  int64_t i = 0;
  for (auto _ : state) {
    const convert::StackPlan& plan = plans[i++ % kNumBatches];
    const convert::FeaturePlan& feature = plan.features.front();
    const convert::Slice all = SliceOf(plan, feature, /*local_sc=*/0);
    const auto ids = std::get<std::span<const int32_t>>(all.ids);
    for (int64_t s = 0; s < batch_size; s += samples_at_once) {
      const int64_t size = std::min(samples_at_once, batch_size - s);
      const int64_t first_id = s * ids_per_sample;
      const int64_t num_ids = size * ids_per_sample;
      convert::Slice slice = all;
      slice.samples.size = size;
      slice.ids = ids.subspan(first_id, num_ids);
      if (has_weights) slice.weights = all.weights->subspan(first_id, num_ids);
      if (!entries.Read(plan, feature, slice, numbers)) {
        state.SkipWithError("An id or a weight was refused.");
      }
    }
    benchmark::DoNotOptimize(entries.view().entries.data());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
}

void BM_UpdateLimit(benchmark::State& state, int64_t workload, int num_slots) {
  Data& data = GetData(workload);
  std::vector<float*> tables;
  for (int k = 0; k <= num_slots; ++k) tables.push_back(GetTable(k).data());
  int64_t i = 0;
  for (auto _ : state) {
    const Batch& batch = data.batches[i++ % kNumBatches];
    benchmark::DoNotOptimize(ReadRows(data.gradient.data(), batch.sample_ids));
    WriteRows(tables, batch.distinct_ids);
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
}

struct RuleCase {
  std::string_view rule;
  std::vector<float> hyperparameters;
  int num_slots;
};

void BM_Update(benchmark::State& state, int64_t workload,
               const RuleCase& rule_case) {
  Data& data = GetData(workload);
  std::vector<std::span<float>> slots;
  for (int k = 0; k < rule_case.num_slots; ++k) {
    slots.emplace_back(GetTable(k + 1));
  }
  const Tables tables{.table = GetTable(0), .slots = slots};
  InlineExecutor executor;
  int64_t i = 0;
  for (auto _ : state) {
    const auto done = ApplyRows(
        data.batches[i++ % kNumBatches].buffers(), data.geometry, data.gradient,
        kDim,
        {.rule = rule_case.rule, .hyperparameters = rule_case.hyperparameters},
        tables, executor);
    if (!done) state.SkipWithError(done.error().message.c_str());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(data.batches[0].ids));
}

void RegisterAll() {
  const std::vector<RuleCase> rule_cases = {
      {"sgd", {1e-6f}, 0},
      {"adagrad", {1e-6f}, 1},
      {"adam", {1e-6f, 0.9f, 0.99f, 1e-6f}, 2},
  };
  for (int64_t w = 0; w < std::ssize(kWorkloads); ++w) {
    const std::string name(kWorkloads[w].name);
    benchmark::RegisterBenchmark((name + "/lookup_limit").c_str(),
                                 BM_LookupLimit, w);
    benchmark::RegisterBenchmark((name + "/lookup").c_str(), BM_Lookup, w);
    for (const bool has_weights : {false, true}) {
      const std::string suffix = has_weights ? "_weighted" : "";
      benchmark::RegisterBenchmark((name + "/lookup_ids" + suffix).c_str(),
                                   BM_LookupIds, w, has_weights);
      benchmark::RegisterBenchmark((name + "/read_ids" + suffix).c_str(),
                                   BM_ReadIds, w, has_weights);
    }
    for (const RuleCase& rule_case : rule_cases) {
      const std::string update = name + "/" + std::string(rule_case.rule);
      benchmark::RegisterBenchmark((update + "_limit").c_str(), BM_UpdateLimit,
                                   w, rule_case.num_slots);
      benchmark::RegisterBenchmark(update.c_str(), BM_Update, w, rule_case);
    }
  }
}

}  // namespace
}  // namespace jte::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  jte::kernels::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
