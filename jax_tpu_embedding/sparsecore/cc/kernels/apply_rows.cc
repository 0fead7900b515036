// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/apply_rows.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/popular_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/step_rule.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sum_rows.h"

namespace jte {
namespace {

// Small enough to share out skewed batches, large enough that taking a task and
// its first, unhidden memory accesses do not count.
constexpr int64_t kEntriesPerTask = 4096;

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

  RowStepper MakeStepper() const {
    return RowStepper(update, gradient.dim, MaxRows());
  }
  int64_t MaxRows() const {
    return std::clamp<int64_t>(kBlockFloats / gradient.dim, 1,
                               kMaxRowsPerBlock);
  }
};

// Steps every row whose entries are in [begin, end), which are all its entries.
template <typename Order>
void ApplyRange(const Order& order, int64_t begin, int64_t end, const Job& job,
                RowStepper& stepper) {
  while (begin < end) {
    const SummedRows sums =
        SumRows(order, begin, end, job.gradient, job.MaxRows(), stepper.rows(),
                stepper.gradients());
    stepper.Add(sums.num_rows);
    begin = sums.end;
  }
}

// The same, but for the entries of some rows, which are in ascending order.
template <typename Order>
void ApplyOthers(const Order& order, int64_t begin, int64_t end,
                 std::span<const EntryRange> popular, const Job& job) {
  RowStepper stepper = job.MakeStepper();
  auto row = std::ranges::lower_bound(popular, begin, {}, &EntryRange::begin);
  for (; row != popular.end() && row->begin < end; ++row) {
    ApplyRange(order, begin, row->begin, job, stepper);
    begin = row->end;
  }
  ApplyRange(order, begin, end, job, stepper);
  stepper.Flush();
}

// Steps these rows.
template <typename Order>
void ApplyPopular(const Order& order, std::span<const EntryRange> rows,
                  const Job& job) {
  const int64_t dim = job.gradient.dim;
  const std::vector<float> sums =
      SumPopularRows(order, rows, job.gradient, job.num_samples);
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

// Cuts `rows` into `num_parts` with about as many entries each; no rows have no
// parts.
std::vector<std::span<const EntryRange>> CutByEntries(
    std::span<const EntryRange> rows, int64_t num_parts) {
  if (rows.empty()) return {};
  int64_t total = 0;
  for (const EntryRange& row : rows) total += row.end - row.begin;
  std::vector<std::span<const EntryRange>> parts;
  int64_t entries = 0;  // up to the end of the part
  size_t first = 0;
  for (int64_t part = 1; part <= num_parts; ++part) {
    size_t last = first;
    while (last < rows.size() && entries < total * part / num_parts) {
      entries += rows[last].end - rows[last].begin;
      ++last;
    }
    parts.push_back(rows.subspan(first, last - first));
    first = last;
  }
  return parts;
}

// Steps all rows. The tasks are the popular rows, a part for each thread, and
// ranges of about kEntriesPerTask entries, cut at the first entry of a row.
template <typename Order>
void ApplyAll(const Order& order, int64_t num_entries, const Job& job,
              Executor& executor) {
  std::vector<EntryRange> popular;
  if (PopularRowsPay(job.gradient, job.num_samples)) {
    popular = FindPopularRows(order, num_entries);
  }
  const auto parts = CutByEntries(popular, executor.num_threads());
  const int64_t num_parts = std::ssize(parts);
  const auto row_start = [&order, num_entries](int64_t i) -> int64_t {
    if (i == 0 || i >= num_entries) return std::min(i, num_entries);
    return RowEnd(order, i - 1, num_entries);
  };
  executor.ParallelFor(
      num_parts + CeilDiv(num_entries, kEntriesPerTask),
      [&order, &row_start, &parts, &popular, &job, num_parts](int64_t task) {
        if (task < num_parts) {
          ApplyPopular(order, parts[task], job);
          return;
        }
        const int64_t begin = (task - num_parts) * kEntriesPerTask;
        ApplyOthers(order, row_start(begin), row_start(begin + kEntriesPerTask),
                    popular, job);
      });
}

// Whether the entries are one partition in ascending order of ids.
bool IsOrdered(const CooBuffers& buffers,
               std::span<const Partition> partitions) {
  if (partitions.size() != 1) return false;
  const auto [begin, end, first_row, first_sample, device] = partitions.front();
  if (first_row != 0 || first_sample != 0) return false;
  // Ids are checked, hence not negative, and their differences in range. No
  // exit and no bool, so that GCC vectorizes the loop.
  const int32_t* ids = buffers.embedding_ids.data();
  int32_t differences = 0;
  for (int64_t i = begin + 1; i < end; ++i) differences |= ids[i] - ids[i - 1];
  return differences >= 0;
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
  Job job{
      .gradient = {.rows = {gradients, geometry.batch_size(), dim},
                   .dim = dim,
                   .num_devices = geometry.num_devices,
                   .num_sources = geometry.num_sc_per_device,
                   .batch_size_per_sc = geometry.batch_size_per_sc,
                   .sample_bits =
                       RowBits(geometry.num_devices, geometry.batch_size())},
      .num_samples = geometry.batch_size(),
      .update = {.table = tables.table,
                 .slots = {},
                 .num_slots = rule.num_slots,
                 .has_row_slots = rule.has_row_slots,
                 .step = rule.choose_step(optimizer.hyperparameters.data()),
                 .hyperparameters = optimizer.hyperparameters.data(),
                 .options = optimizer.options,
                 .rounding = optimizer.rounding},
  };
  for (size_t k = 0; k < tables.slots.size(); ++k) {
    job.update.slots[k] = tables.slots[k].data();
  }
  return job;
}

}  // namespace

Result<void> ApplyRows(const CooBuffers& buffers, const CooGeometry& geometry,
                       std::span<const float> activation_gradient, int64_t dim,
                       const Optimizer& optimizer, const Tables& tables,
                       Executor& executor) {
  const auto rule = FindRule(optimizer.rule);
  if (!rule) return std::unexpected(rule.error());
  const int64_t num_rows = geometry.rows_per_device();
  if (auto checked = CheckOptimizer(*rule, optimizer, tables, num_rows, dim);
      !checked) {
    return checked;
  }
  const auto partitions = ReadPartitions(buffers, geometry);
  if (!partitions) return std::unexpected(partitions.error());
  if (auto checked = CheckEntries(buffers, *partitions, geometry, executor);
      !checked) {
    return checked;
  }
  const int64_t num_entries = CountEntries(*partitions);
  if (num_entries == 0 || dim == 0) return {};

  const float* gradient = activation_gradient.data();
  const Job job =
      MakeJob(*rule, geometry, std::span(&gradient, 1), dim, optimizer, tables);
  if (IsOrdered(buffers, *partitions)) {
    const int64_t begin = partitions->front().begin;
    const PartitionOrder order{buffers.embedding_ids.data() + begin,
                               buffers.sample_ids.data() + begin,
                               buffers.gains.data() + begin};
    ApplyAll(order, num_entries, job, executor);
  } else {
    const auto entries =
        SortByRow({buffers, *partitions}, num_entries, num_rows, executor);
    ApplyAll(SortedOrder{entries.get()}, num_entries, job, executor);
  }
  return {};
}

Result<void> ApplyBatches(std::span<const DeviceBatch> batches, int64_t device,
                          const CooGeometry& geometry, int64_t dim,
                          const Optimizer& optimizer, const Tables& tables,
                          Executor& executor) {
  const auto rule = FindRule(optimizer.rule);
  if (!rule) return std::unexpected(rule.error());
  const int64_t num_rows = geometry.rows_per_device();
  if (auto checked = CheckOptimizer(*rule, optimizer, tables, num_rows, dim);
      !checked) {
    return checked;
  }
  // Samples are compared, hence no negative numbers.
  if (!NumbersFit(geometry.num_devices, geometry.batch_size(), 31)) {
    return InvalidArgument("The batches of ", geometry.num_devices,
                           " devices have ", geometry.batch_size(),
                           " samples each, expected numbers of 31 bits.");
  }
  const int bits = RowBits(geometry.num_devices, geometry.batch_size());
  std::vector<const float*> gradients;
  std::vector<Entry> entries;
  for (int64_t source = 0; source < std::ssize(batches); ++source) {
    gradients.push_back(batches[source].activation_gradient);
    const CooBuffers& buffers = batches[source].buffers;
    auto partitions = ReadPartitions(buffers, geometry);
    if (!partitions) return std::unexpected(partitions.error());
    std::erase_if(*partitions, [device](const Partition& partition) {
      return partition.device != device;
    });
    for (Partition& partition : *partitions) {
      partition.first_sample += source << bits;
    }
    const BufferEntries from{buffers, *partitions};
    const int64_t num_entries = CountEntries(*partitions);
    entries.reserve(entries.size() + num_entries);
    from.ForEach(0, num_entries,
                 [&entries](const Entry& entry) { entries.push_back(entry); });
  }
  if (entries.empty() || dim == 0) return {};
  const Job job = MakeJob(*rule, geometry, gradients, dim, optimizer, tables);
  const auto sorted = SortByRow(entries, num_rows, executor);
  ApplyAll(SortedOrder{sorted.get()}, std::ssize(entries), job, executor);
  return {};
}

}  // namespace jte
