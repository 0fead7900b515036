// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch_step.h"

#include <algorithm>
#include <cstdint>
#include <expected>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/bucket_counts.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/fill_minibatches.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/partition_limits.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {
namespace {

PartitionName NameOf(const PartitionTable& table, size_t index) {
  const auto num_buckets = static_cast<size_t>(table.num_buckets);
  PartitionName name = {.partition =
                            static_cast<uint32_t>(index / num_buckets)};
  if (num_buckets > 1) name.bucket = static_cast<int32_t>(index % num_buckets);
  return name;
}

// The i-th of n parts of [begin, end), as equal as they can be.
struct Range {
  int64_t begin;
  int64_t end;
};
Range EvenPart(Range all, int64_t i, int64_t n) {
  const int64_t size = all.end - all.begin;
  return {all.begin + size * i / n, all.begin + size * (i + 1) / n};
}

}  // namespace

MinibatchStep::MinibatchStep(std::span<const StackPlan> stacks,
                             Executor& executor)
    : stacks_(stacks),
      executor_(executor),
      sparse_cores_(stacks.size() * NumLocalScs(stacks.front().topology)) {
  for (const StackPlan& plan : stacks) stats_.emplace_back(plan.topology);
}

MinibatchStep::~MinibatchStep() {
  // In reverse order: the next step, which takes the last one first, then has
  // most SparseCores find memory of their size.
  for (SparseCore& sc : sparse_cores_ | std::views::reverse) {
    if (sc.scratch) scratch_pool_.Return(std::move(sc.scratch));
  }
}

Result<void> MinibatchStep::Count() {
  return ForEachSparseCore(
      stacks_, executor_,
      [this](const SparseCoreTask& task) { return CountSparseCore(task); });
}

Result<void> MinibatchStep::CountSparseCore(const SparseCoreTask& task) {
  const StackPlan& plan = stacks_[task.stack];
  SparseCore& sc = sparse_cores_[task.index];
  sc.scratch = scratch_pool_.Take();
  auto ids = SortIds(plan, task.local_sc, *sc.scratch);
  if (!ids) return std::unexpected(std::move(ids).error());
  sc.ids = *ids;
  const PartitionLimits limits = LimitsOf(plan);
  sc.table = CountPartitions(sc.ids, plan.sort_key, limits.num_scs);

  const PartitionCounts counts = {
      .ids = sc.scratch->num_ids.Take(limits.num_scs),
      .unique_ids = sc.scratch->num_unique_ids.Take(limits.num_scs)};
  for (uint32_t t = 0; t < limits.num_scs; ++t) {
    const BucketCounts& partition = sc.table.counts[t];
    counts.ids[t] = static_cast<int32_t>(partition.num_ids);
    counts.unique_ids[t] = static_cast<int32_t>(partition.num_unique_ids);
    if (!partition.Within(limits)) exceeds_limits_ = true;
  }
  stats_[task.stack].Record(
      task.local_sc, counts,
      CountCells(sc.table, MinibatchSplit(), &BucketCounts::num_ids));
  return {};
}

Result<void> MinibatchStep::SortIntoBuckets() {
  ScratchPool<RowScratch> pool;
  return ForEachSparseCore(
      stacks_, executor_,
      [this, &pool](const SparseCoreTask& task) -> Result<void> {
        const StackPlan& plan = stacks_[task.stack];
        const PartitionLimits limits = LimitsOf(plan);
        SparseCore& sc = sparse_cores_[task.index];
        auto scratch = pool.Take();
        sc.table =
            jte::SortIntoBuckets(sc.ids, plan.sort_key, limits, *scratch);
        pool.Return(std::move(scratch));
        split_bits_ |= SplitBits(sc.table, limits);
        return {};
      });
}

Result<void> MinibatchStep::Fill(const MinibatchSplit& split,
                                 std::span<const CsrBuffers> buffers) {
  auto done = ForEachSparseCore(stacks_, executor_,
                                [this, &split](const SparseCoreTask& task) {
                                  PlanCells(task, split);
                                  return Result<void>();
                                });
  if (!done) return done;
  return ForEachSparseCore(
      stacks_, executor_, [this, &split, buffers](const SparseCoreTask& task) {
        const Topology& topology = stacks_[task.stack].topology;
        FillSparseCore(
            task, split,
            buffers[task.stack].Part(task.local_sc / topology.num_sc_per_device,
                                     topology.local_device_count));
        return Result<void>();
      });
}

void MinibatchStep::PlanCells(const SparseCoreTask& task,
                              const MinibatchSplit& split) {
  SparseCore& sc = sparse_cores_[task.index];
  for (size_t i = 0; i < sc.table.counts.size(); ++i) {
    const PartitionName name = NameOf(sc.table, i);
    sc.report.ids.Record(sc.table.counts[i].num_ids, name);
    sc.report.unique_ids.Record(sc.table.counts[i].num_unique_ids, name);
  }
  sc.report.required_cells =
      CountCells(sc.table, split, &BucketCounts::num_ids);
  sc.kept_cells = CountCells(sc.table, split, &BucketCounts::num_kept_ids);
  stats_[task.stack].RecordMinibatches(task.local_sc, sc.report.required_cells);
}

void MinibatchStep::FillSparseCore(const SparseCoreTask& task,
                                   const MinibatchSplit& split,
                                   const CsrBuffers& device) {
  const StackPlan& plan = stacks_[task.stack];
  const int64_t num_scs = plan.topology.num_sc_per_device;  // of the device
  const int64_t s = task.local_sc % num_scs;
  const int64_t num_cells = plan.coo_cells_per_device;
  // SparseCores begin where those before them end, if there is room.
  const auto on_device =
      std::span(sparse_cores_).subspan(task.index - s, num_scs);
  int64_t begin = 0;
  for (const SparseCore& other : on_device.first(s)) begin += other.kept_cells;
  int64_t used_cells = begin;
  for (const SparseCore& other : on_device.subspan(s)) {
    used_cells += other.kept_cells;
  }
  SparseCore& sc = on_device[s];
  const auto cells_before = [&device, num_cells](int64_t end) {
    return device.FirstCells(std::min(end, num_cells));
  };
  const int64_t num_pointers =
      split.size() * RowPointersPerBlock(plan.topology.num_scs());
  sc.report.dropped_id_count = FillMinibatches(
      sc.ids, plan.sort_key, sc.table, split, LimitsOf(plan),
      device.row_pointers.subspan(s * num_pointers, num_pointers),
      cells_before(begin + sc.kept_cells), std::min(begin, num_cells));

  // The unused rest of the device, shared out.
  const Range padding =
      EvenPart({std::min(used_cells, num_cells), num_cells}, s, num_scs);
  Pad(device, padding.begin, padding.end - padding.begin);
  const Range unused = EvenPart(
      {num_scs * num_pointers, std::ssize(device.row_pointers)}, s, num_scs);
  std::fill(device.row_pointers.begin() + unused.begin,
            device.row_pointers.begin() + unused.end, 0);
}

Result<std::vector<StackStats>> MinibatchStep::TakeStats(
    bool allow_id_dropping) {
  const int64_t num_scs = NumLocalScs(stacks_.front().topology);
  LimitErrors errors;
  std::vector<FillReport> reports(num_scs);
  std::vector<StackStats> all_stats;
  for (size_t i = 0; i < stacks_.size(); ++i) {
    for (int64_t s = 0; s < num_scs; ++s) {
      const SparseCore& sc = sparse_cores_[i * num_scs + s];
      reports[s] = sc.report;
      stats_[i].RecordDropped(sc.ids.dropped_id_count +
                              sc.report.dropped_id_count);
    }
    if (!allow_id_dropping) errors.AddPacked(stacks_[i], reports);
    all_stats.push_back(stats_[i].Take());
  }
  if (auto checked = errors.Check(); !checked) {
    return std::unexpected(checked.error());
  }
  return all_stats;
}

}  // namespace jte
