// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/apply_rows.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/merge_runs.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/hot_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/long_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_ranges.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"

namespace jte::kernels {

namespace {

// The gradients of a block of rows: a part of a first-level cache, and enough
// rows that what is done once per block does not count. With half of it an
// update takes 1.01 to 1.09 times as long.
constexpr int64_t kBlockFloats = 2048;
constexpr int64_t kMaxRowsPerBlock = 64;

// Everything a task needs but its entries.
struct Job {
  ActivationGradient gradient;
  int64_t num_samples;
  RowUpdate update;
  StepEntriesFunction step_entries;  // null: in two passes

  RowStepper MakeStepper() const {
    return RowStepper(update, gradient.dim, MaxRows());
  }
  int64_t MaxRows() const {
    return std::clamp<int64_t>(kBlockFloats / gradient.dim, 1,
                               kMaxRowsPerBlock);
  }
};

// Whether one pass does everything, if the rule has one.
bool IsOnePass(const Rule& rule, const Optimizer& optimizer,
               const TableValues& table, const ActivationGradient& gradient) {
  return gradient.has_one_source() &&
         OnePassServes(rule, optimizer.options,
                       std::holds_alternative<std::span<float>>(table),
                       gradient.dim);
}

// Steps these rows in one pass, none of which is long.
void StepInOnePass(const PartitionOrder& order, int64_t begin, int64_t end,
                   const Job& job) {
  if (begin == end) return;
  const RowUpdate& update = job.update;
  job.step_entries(order, begin, end,
                   {.gradient = {job.gradient.rows[0], job.gradient.dim},
                    .table = update.table,
                    .slots = update.slots,
                    .hyperparameters = update.hyperparameters,
                    .options = update.options,
                    .rounding = update.rounding});
}

// Steps these rows in two passes.
template <typename Order>
void StepInTwoPasses(const Order& order, int64_t begin, int64_t end,
                     const Job& job, RowStepper& stepper) {
  while (begin < end) {
    const SummedRows sums =
        SumRows(order, begin, end, job.gradient, job.MaxRows(), stepper.rows(),
                stepper.gradients());
    stepper.Add(sums.num_rows);
    begin = sums.end;
  }
}

// Steps every row whose entries are in [begin, end), which are all its entries.
template <typename Order>
void ApplyRange(const Order& order, int64_t begin, int64_t end, const Job& job,
                RowStepper& stepper) {
  if constexpr (std::is_same_v<Order, PartitionOrder>) {
    while (job.step_entries != nullptr && begin < end) {
      const EntryRange row = NextLongRow(order, begin, end, kTermsPerBlock + 1);
      StepInOnePass(order, begin, row.begin, job);
      StepInTwoPasses(order, row.begin, row.end, job, stepper);
      begin = row.end;
    }
  }
  StepInTwoPasses(order, begin, end, job, stepper);
}

// The same, but for the entries of some rows, which are in ascending order.
template <typename Order>
void ApplyOthers(const Order& order, int64_t begin, int64_t end,
                 std::span<const EntryRange> hot, const Job& job) {
  RowStepper stepper = job.MakeStepper();
  auto row = std::ranges::lower_bound(hot, begin, {}, &EntryRange::begin);
  for (; row != hot.end() && row->begin < end; ++row) {
    ApplyRange(order, begin, row->begin, job, stepper);
    begin = row->end;
  }
  ApplyRange(order, begin, end, job, stepper);
  stepper.Flush();
}

// Steps these rows.
template <typename Order>
void ApplyHot(const Order& order, std::span<const EntryRange> rows,
              const Job& job) {
  const int64_t dim = job.gradient.dim;
  const std::vector<float> sums =
      SumHotRows(order, rows, job.gradient, job.num_samples);
  RowStepper stepper = job.MakeStepper();
  const int64_t num_rows = std::ssize(rows);
  for (int64_t first = 0; first < num_rows; first += job.MaxRows()) {
    const int64_t size = std::min(job.MaxRows(), num_rows - first);
    for (int64_t i = 0; i < size; ++i) {
      stepper.rows()[i] = order.row(rows[first + i].begin);
    }
    std::copy_n(sums.data() + first * dim, size * dim, stepper.gradients());
    stepper.Add(size);
  }
  stepper.Flush();
}

// Steps all rows. The tasks are the hot rows, a part for each thread, and
// ranges of about kEntriesPerTask entries, cut at the first entry of a row.
template <typename Order>
void ApplyAll(const Order& order, int64_t num_entries, const Job& job,
              Executor& executor) {
  std::vector<EntryRange> hot;
  if (HotRowsPay(job.gradient, job.num_samples)) {
    hot = FindHotRows(order, num_entries);
  }
  const auto parts = CutByEntries(hot, executor.num_threads());
  const int64_t num_parts = std::ssize(parts);
  executor.ParallelFor(
      num_parts + CeilDiv(num_entries, kEntriesPerTask),
      [&order, &parts, &hot, &job, num_entries, num_parts](int64_t task) {
        if (task < num_parts) {
          ApplyHot(order, parts[task], job);
          return;
        }
        const int64_t begin = (task - num_parts) * kEntriesPerTask;
        ApplyOthers(order, RowStart(order, begin, num_entries),
                    RowStart(order, begin + kEntriesPerTask, num_entries), hot,
                    job);
      });
}

// Steps all rows of runs that are ascending. The tasks are ranges of rows with
// about kEntriesPerTask entries.
void ApplyRuns(std::span<const Run> runs, int64_t num_rows, const Job& job,
               Executor& executor) {
  const std::vector<int64_t> cuts = CutRows(runs, num_rows, kEntriesPerTask);
  ScratchPool<MergeScratch> scratch_pool;
  executor.ParallelFor(
      std::ssize(cuts) - 1, [&runs, &cuts, &job, &scratch_pool](int64_t task) {
        auto scratch = scratch_pool.Take();
        const std::span<const Entry> entries =
            MergeRuns(runs, cuts[task], cuts[task + 1], *scratch);
        RowStepper stepper = job.MakeStepper();
        ApplyRange(SortedOrder{entries.data()}, 0, std::ssize(entries), job,
                   stepper);
        stepper.Flush();
        scratch_pool.Return(std::move(scratch));
      });
}

Result<void> CheckOptimizer(const Rule& rule, const Optimizer& optimizer,
                            const Tables& tables, int64_t num_rows,
                            int64_t dim) {
  if (std::ssize(optimizer.hyperparameters) != rule.num_hyperparameters) {
    return InvalidArgument("Update rule '", rule.name, "' has ",
                           rule.num_hyperparameters, " hyperparameters, got ",
                           optimizer.hyperparameters.size(), ".");
  }
  if (std::ssize(tables.slots) != rule.num_slots) {
    return InvalidArgument("Update rule '", rule.name, "' has ", rule.num_slots,
                           " slots, got ", tables.slots.size(), ".");
  }
  const int64_t slot_columns = rule.has_row_slots ? 1 : dim;
  for (size_t k = 0; k < tables.slots.size(); ++k) {
    if (std::ssize(tables.slots[k]) != num_rows * slot_columns) {
      return InvalidArgument("Slot ", k, " of update rule '", rule.name,
                             "' has ", tables.slots[k].size(),
                             " numbers, expected ", slot_columns,
                             " for each of ", num_rows, " rows.");
    }
  }
  if (optimizer.rounding &&
      std::holds_alternative<std::span<float>>(tables.table)) {
    return InvalidArgument(
        "Stochastic rounding of a float32 table: nothing is rounded. Use a "
        "bfloat16 or float16 table, or round to nearest.");
  }
  return {};
}

Job MakeJob(const Rule& rule, const CooGeometry& geometry,
            std::span<const float* const> gradients, int64_t dim,
            const Optimizer& optimizer, const Tables& tables) {
  const Steps steps = rule.choose_steps(optimizer.hyperparameters.data());
  Job job{
      .gradient = MakeActivationGradient(gradients, geometry.num_sc_per_device,
                                         geometry.batch_size_per_sc, dim),
      .num_samples = geometry.batch_size(),
      .update = {.table = tables.table,
                 .slots = {},
                 .num_slots = rule.num_slots,
                 .has_row_slots = rule.has_row_slots,
                 .step = steps.block,
                 .hyperparameters = optimizer.hyperparameters.data(),
                 .options = optimizer.options,
                 .rounding = optimizer.rounding},
      .step_entries = nullptr,
  };
  if (IsOnePass(rule, optimizer, tables.table, job.gradient)) {
    job.step_entries = optimizer.options == RowOptions()
                           ? steps.entries
                           : steps.entries_with_options;
  }
  for (size_t k = 0; k < tables.slots.size(); ++k) {
    job.update.slots[k] = tables.slots[k].data();
  }
  return job;
}

// The rows of a device's message that the table has, as entries of gain 1.
class ReceivedEntries {
 public:
  ReceivedEntries(std::span<const int32_t> rows, int64_t num_rows)
      : rows_(rows.size()), places_(rows.size()) {
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      rows_[size_] = rows[i];
      places_[size_] = static_cast<int32_t>(i);
      size_ += 0 <= rows[i] && rows[i] < num_rows;
    }
  }

  // Appends them to `runs`, cut where they do not ascend. They must outlive
  // these.
  //
  // ones: as many of these as there are entries.
  void AddRuns(int32_t first_sample, const float* ones,
               std::vector<Run>& runs) const {
    int64_t begin = 0;
    for (int64_t i = 1; i <= size_; ++i) {
      if (i < size_ && rows_[i] >= rows_[i - 1]) continue;
      runs.push_back(
          {.embedding_ids = std::span(rows_).subspan(begin, i - begin),
           .sample_ids = places_.data() + begin,
           .gains = ones,
           .first_row = 0,
           .first_sample = first_sample});
      begin = i;
    }
  }

 private:
  std::vector<int32_t> rows_;
  std::vector<int32_t> places_;
  int64_t size_ = 0;
};

// Samples of several devices are compared, hence no negative numbers.
Result<void> CheckSamplesFit(const CooGeometry& geometry) {
  if (NumbersFit(geometry.num_devices, geometry.batch_size(), 31)) return {};
  return InvalidArgument("The batches of ", geometry.num_devices,
                         " devices have ", geometry.batch_size(),
                         " samples each, expected numbers of 31 bits.");
}

}  // namespace

Result<void> ApplyRows(const CooBuffers& buffers, const CooGeometry& geometry,
                       std::span<const float> activation_gradient, int64_t dim,
                       const Optimizer& optimizer, const Tables& tables,
                       Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto rule, FindRule(optimizer.rule));
  const int64_t num_rows = geometry.rows_per_device();
  JTE_RETURN_IF_ERROR(CheckOptimizer(rule, optimizer, tables, num_rows, dim));
  JTE_ASSIGN_OR_RETURN(const auto partitions,
                       ReadPartitions(buffers, geometry));
  JTE_RETURN_IF_ERROR(CheckEntries(buffers, partitions, geometry, executor));
  const int64_t num_entries = CountEntries(partitions);
  if (num_entries == 0 || dim == 0) return {};

  const float* gradient = activation_gradient.data();
  const Job job =
      MakeJob(rule, geometry, std::span(&gradient, 1), dim, optimizer, tables);
  if (IsOrdered(buffers, partitions)) {
    const int64_t begin = partitions.front().begin;
    const PartitionOrder order{buffers.embedding_ids.data() + begin,
                               buffers.sample_ids.data() + begin,
                               buffers.gains.data() + begin};
    ApplyAll(order, num_entries, job, executor);
    return {};
  }
  std::vector<Run> runs;
  for (const Partition& partition : partitions) {
    runs.push_back(MakeRun(buffers, partition));
  }
  if (std::ranges::all_of(runs, IsAscending)) {
    ApplyRuns(runs, num_rows, job, executor);
  } else {
    const auto entries =
        SortByRow({buffers, partitions}, num_entries, num_rows, executor);
    ApplyAll(SortedOrder{entries.get()}, num_entries, job, executor);
  }
  return {};
}

Result<void> ApplyBatches(std::span<const DeviceBatch> batches, int64_t device,
                          const CooGeometry& geometry, int64_t dim,
                          const Optimizer& optimizer, const Tables& tables,
                          Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto rule, FindRule(optimizer.rule));
  const int64_t num_rows = geometry.rows_per_device();
  JTE_RETURN_IF_ERROR(CheckOptimizer(rule, optimizer, tables, num_rows, dim));
  JTE_RETURN_IF_ERROR(CheckSamplesFit(geometry));
  const int bits = RowBits(geometry.num_devices, geometry.batch_size());
  std::vector<const float*> gradients;
  std::vector<Run> runs;
  for (int64_t source = 0; source < std::ssize(batches); ++source) {
    gradients.push_back(batches[source].activation_gradient);
    JTE_ASSIGN_OR_RETURN(const auto partitions,
                         ReadPartitions(batches[source].buffers, geometry));
    for (Partition partition : partitions) {
      if (partition.device != device) continue;
      partition.first_sample += source << bits;
      runs.push_back(MakeRun(batches[source].buffers, partition));
    }
  }
  if (runs.empty() || dim == 0) return {};
  const Job job = MakeJob(rule, geometry, gradients, dim, optimizer, tables);
  if (std::ranges::all_of(runs, IsAscending)) {
    ApplyRuns(runs, num_rows, job, executor);
    return {};
  }
  std::vector<Entry> entries;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.size(); ++i) {
      entries.push_back(
          {static_cast<int32_t>(run.row(i)), run.sample(i), run.gains[i]});
    }
  }
  const auto sorted = SortByRow(entries, num_rows, executor);
  ApplyAll(SortedOrder{sorted.get()}, std::ssize(entries), job, executor);
  return {};
}

Result<void> ApplyReceived(std::span<const ReceivedGradients> received,
                           int64_t num_rows, int64_t dim,
                           const Optimizer& optimizer, const Tables& tables,
                           Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto rule, FindRule(optimizer.rule));
  JTE_RETURN_IF_ERROR(CheckOptimizer(rule, optimizer, tables, num_rows, dim));
  const CooGeometry geometry{.num_sc_per_device = 1,
                             .rows_per_shard = num_rows,
                             .batch_size_per_sc = std::ssize(received[0].rows),
                             .enable_minibatching = false,
                             .num_minibatches = 1,
                             .num_devices = std::ssize(received)};
  JTE_RETURN_IF_ERROR(CheckSamplesFit(geometry));
  std::vector<ReceivedEntries> entries;
  std::vector<const float*> gradients;
  for (const auto& [rows, values] : received) {
    entries.emplace_back(rows, num_rows);
    gradients.push_back(values);
  }
  const std::vector<float> ones(geometry.batch_size(), 1.0f);
  const int bits = RowBits(geometry.num_devices, geometry.batch_size());
  std::vector<Run> runs;
  for (int64_t k = 0; k < geometry.num_devices; ++k) {
    entries[k].AddRuns(static_cast<int32_t>(k << bits), ones.data(), runs);
  }
  if (runs.empty() || dim == 0) return {};
  Job job = MakeJob(rule, geometry, gradients, dim, optimizer, tables);
  // Each is what a source SparseCore has summed.
  job.gradient.batch_size_per_sc = 1;
  ApplyRuns(runs, num_rows, job, executor);
  return {};
}

}  // namespace jte::kernels
