// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup_ids.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/slice.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/id_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/pool_samples.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::kernels {
namespace {

int64_t RowBytes(const LookupTable& table, int64_t dim) {
  return std::visit(
      [dim]<typename T>(std::span<const T>) -> int64_t {
        const int64_t size =
            std::is_same_v<T, CodeWord> ? CodeWordsPerRow(dim) : dim;
        return size * static_cast<int64_t>(sizeof(T));
      },
      table);
}

// Some samples of a feature, and where their activations are.
struct Task {
  const convert::FeaturePlan* feature;
  convert::Slice slice;
  int64_t first_activation;
};

// Adds tasks for the samples of a slice.
void CutSlice(const convert::FeaturePlan& feature, const convert::Slice& slice,
              int64_t first_activation, int64_t work_per_task,
              std::vector<Task>& tasks) {
  const int64_t num_samples = slice.samples.size;
  const auto samples = std::views::iota(int64_t{0}, num_samples);
  const auto first_from = [&slice, samples](int64_t work) -> int64_t {
    return std::ranges::partition_point(samples,
                                        [&slice, work](int64_t s) {
                                          return slice.FirstId(s) + s < work;
                                        }) -
           samples.begin();
  };
  const int64_t num_tasks =
      CeilDiv(slice.num_ids() + num_samples, work_per_task);
  int64_t begin = 0;
  for (int64_t task = 1; task <= num_tasks; ++task) {
    const int64_t end =
        task == num_tasks ? num_samples : first_from(task * work_per_task);
    if (begin < end) {
      tasks.push_back({.feature = &feature,
                       .slice = slice.Part(begin, end),
                       .first_activation = first_activation + begin});
    }
    begin = end;
  }
}

// All samples of the device, in the order that errors are looked for: by
// SparseCore, feature and sample.
std::vector<Task> CutBatch(const convert::StackPlan& plan,
                           int64_t num_activations, int64_t work_per_task) {
  std::vector<Task> tasks;
  const int64_t num_scs = plan.topology.num_sc_per_device;
  for (int64_t sc = 0; sc < num_scs; ++sc) {
    for (const convert::FeaturePlan& feature : plan.features) {
      const convert::Slice slice = SliceOf(plan, feature, sc);
      CutSlice(feature, slice,
               sc * (num_activations / num_scs) + slice.samples.first_sample_id,
               work_per_task, tasks);
    }
  }
  return tasks;
}

Result<void> CheckRows(const convert::StackPlan& plan, int64_t rows_per_shard,
                       int64_t num_tables) {
  const Topology& topology = plan.topology;
  const int64_t rows_per_device = topology.num_sc_per_device * rows_per_shard;
  if (num_tables != topology.global_device_count ||
      !NumbersFit(num_tables, rows_per_device, num_tables == 1 ? 31 : 32)) {
    return InvalidArgument("The tables of ", num_tables, " devices have ",
                           rows_per_device, " rows each, expected those of ",
                           topology.global_device_count,
                           " and numbers of 32 bits.");
  }
  for (const convert::FeaturePlan& feature : plan.features) {
    if (int64_t{feature.last_row} < rows_per_shard) continue;
    return InvalidArgument(
        "Feature '", feature.input.name, "': its last id is row ",
        feature.last_row, " of a shard, and shards of the table have ",
        rows_per_shard,
        " rows. Pass the table that its stack was planned for.");
  }
  return {};
}

Result<void> CheckActivations(const convert::StackPlan& plan,
                              int64_t num_activations) {
  const int64_t num_scs = plan.topology.num_sc_per_device;
  if (num_activations % num_scs == 0 &&
      plan.num_sample_ids <= num_activations / num_scs) {
    return {};
  }
  return InvalidArgument("The activations have ", num_activations,
                         " rows, expected at least ", plan.num_sample_ids,
                         " for each of ", num_scs, " SparseCores.");
}

Result<void> PoolTasks(const convert::StackPlan& plan,
                       std::span<const Task> tasks, const RowNumbers& numbers,
                       int64_t dim, const SamplePooler& pool,
                       float* activations, Executor& executor) {
  ScratchPool<IdEntries> entries_pool;
  std::vector<Result<void>> done(tasks.size());
  executor.ParallelFor(std::ssize(tasks), [&plan, &numbers, &pool,
                                           &entries_pool, &done, tasks, dim,
                                           activations](int64_t number) {
    const auto& [feature, slice, first_activation] = tasks[number];
    auto entries = entries_pool.Take();
    if (!entries->Read(plan, *feature, slice, numbers)) {
      const auto clean = convert::Clean(feature->input, plan.combiner, slice);
      if (!clean) {
        done[number] = std::unexpected(clean.error());
        return;
      }
      entries->Read(plan, *feature, clean->View(), numbers);
    }
    pool(entries->view(), 0, slice.samples.size,
         activations + first_activation * dim);
    entries_pool.Return(std::move(entries));
  });
  for (const Result<void>& result : done) JTE_RETURN_IF_ERROR(result);
  return {};
}

}  // namespace

Result<void> LookupIds(const convert::StackPlan& plan,
                       std::span<const LookupTable> tables,
                       int64_t rows_per_shard, int64_t dim,
                       const std::optional<Quantization>& quantization,
                       std::span<float> activations, Executor& executor) {
  const int64_t num_activations =
      std::ssize(activations) / std::max<int64_t>(dim, 1);
  JTE_RETURN_IF_ERROR(CheckRows(plan, rows_per_shard, std::ssize(tables)));
  JTE_RETURN_IF_ERROR(CheckActivations(plan, num_activations));
  const std::vector<Task> tasks = CutBatch(
      plan, num_activations, LookupWorkPerTask(RowBytes(tables.front(), dim)));
  int64_t num_samples = 0;
  for (const Task& task : tasks) num_samples += task.slice.samples.size;
  // No task writes what lies between features.
  if (num_samples < num_activations) std::ranges::fill(activations, 0.0f);

  return PoolTasks(
      plan, tasks, RowNumbers(plan, rows_per_shard), dim,
      MakePooler(tables, plan.topology.num_sc_per_device * rows_per_shard, dim,
                 quantization),
      activations.data(), executor);
}

}  // namespace jte::kernels
