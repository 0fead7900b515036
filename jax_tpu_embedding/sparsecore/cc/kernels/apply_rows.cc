// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/apply_rows.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/step_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/step_rule.h"

namespace jte {
namespace {

// Small enough to share out skewed batches, large enough that taking a task and
// its first, unhidden memory accesses do not count.
constexpr int64_t kEntriesPerTask = 4096;

// The gradients of a block of rows: a part of a first-level cache, and enough
// rows that what is done once per block does not count.
constexpr int64_t kBlockFloats = 1024;
constexpr int64_t kMaxRowsPerBlock = 64;

// Entries ordered by row, read from one partition of the buffers.
struct PartitionOrder {
  const int32_t* embedding_ids;
  const int32_t* sample_ids;
  const float* gains;

  int32_t row(int64_t i) const { return embedding_ids[i]; }
  int32_t sample(int64_t i) const { return sample_ids[i]; }
  float gain(int64_t i) const { return gains[i]; }
};

// Entries ordered by row, after SortByRow.
struct SortedOrder {
  const Entry* entries;

  int32_t row(int64_t i) const { return entries[i].row; }
  int32_t sample(int64_t i) const { return entries[i].sample; }
  float gain(int64_t i) const { return entries[i].gain; }
};

// Everything a task needs but its entries.
struct Job {
  SpreadRows<float> gradient;
  int sample_bits;  // of a sample's number, below those of the device
  int64_t dim;
  int64_t num_sources;  // of a device
  int64_t batch_size_per_sc;
  RowUpdate update;
};

// One past the last sample of the source SparseCore that has `sample`.
inline int64_t SourceEnd(int64_t sample, const Job& job) {
  const int64_t of_device = sample & ((int64_t{1} << job.sample_bits) - 1);
  const int64_t first = sample - of_device;
  if (job.num_sources == 1)
    return first + job.batch_size_per_sc;  // no division
  return first +
         (of_device / job.batch_size_per_sc + 1) * job.batch_size_per_sc;
}

// Adds the terms of the entries from `i` on to `sum`, up to `end` or the first
// sample from `sample_end` on; returns where it stopped.
template <int kWidth, typename Order>
[[gnu::always_inline]] inline int64_t AddTerms(const Order& order, int64_t i,
                                               int64_t end, int64_t sample_end,
                                               int64_t column, const Job& job,
                                               float* sum) {
  for (; i < end && order.sample(i) < sample_end; ++i) {
    const float* __restrict grad = job.gradient[order.sample(i)] + column;
    const float gain = order.gain(i);
    for (int d = 0; d < kWidth; ++d) sum[d] += gain * grad[d];
  }
  return i;
}

// The gradient of a row with the entries [begin, end), in the columns from
// `column` on, in pieces of `kWidth`; returns the first column that is left.
// The sums stay in registers.
template <int kWidth, typename Order>
[[gnu::always_inline]] inline int64_t SumColumns(const Order& order,
                                                 int64_t begin, int64_t end,
                                                 int64_t column, const Job& job,
                                                 float* gradient) {
  for (; column + kWidth <= job.dim; column += kWidth) {
    float sum[kWidth] = {};
    // Partial sums per source SparseCore, which a source could send instead of
    // its entries without changing a bit of the result.
    int64_t i =
        AddTerms<kWidth>(order, begin, end, SourceEnd(order.sample(begin), job),
                         column, job, sum);
    while (i < end) {
      float partial[kWidth] = {};
      i = AddTerms<kWidth>(order, i, end, SourceEnd(order.sample(i), job),
                           column, job, partial);
      for (int d = 0; d < kWidth; ++d) sum[d] += partial[d];
    }
    std::copy_n(sum, kWidth, gradient + column);
  }
  return column;
}

// Asks for the gradient of entry `i`.
template <typename Order>
[[gnu::always_inline]] inline void Prefetch(const Order& order, int64_t i,
                                            const Job& job) {
  PrefetchBatchRow(job.gradient[order.sample(i)], job.dim * sizeof(float));
}

struct SummedRows {
  int64_t num_rows;
  int64_t end;  // of their entries
};

// The next rows, at most `max_rows`, with the entries from `begin` on and
// before `end`, and their gradients.
template <typename Order>
JTE_VECTOR_CLONES SummedRows SumRows(const Order& entries, int64_t begin,
                                     int64_t end, const Job& whole_job,
                                     int64_t max_rows, int32_t* rows,
                                     float* gradients) {
  // Copies stay in registers, whatever is written.
  const Order order = entries;
  const Job job = whole_job;
  const int64_t distance = PrefetchDistance(job.dim * sizeof(float));
  int64_t num_rows = 0;
  while (begin < end && num_rows < max_rows) {
    const int32_t row = order.row(begin);
    int64_t row_end = begin;
    do {
      if (row_end + distance < end) Prefetch(order, row_end + distance, job);
      ++row_end;
    } while (row_end < end && order.row(row_end) == row);

    rows[num_rows] = row;
    float* gradient = gradients + num_rows * job.dim;
    int64_t column = 0;
    column = SumColumns<64>(order, begin, row_end, column, job, gradient);
    column = SumColumns<32>(order, begin, row_end, column, job, gradient);
    column = SumColumns<16>(order, begin, row_end, column, job, gradient);
    column = SumColumns<8>(order, begin, row_end, column, job, gradient);
    SumColumns<1>(order, begin, row_end, column, job, gradient);
    ++num_rows;
    begin = row_end;
  }
  return {num_rows, begin};
}

// Steps every row whose entries are in [begin, end), which are all its entries.
template <typename Order>
void ApplyRange(const Order& order, int64_t begin, int64_t end,
                const Job& job) {
  const int64_t distance = PrefetchDistance(job.dim * sizeof(float));
  for (int64_t i = begin; i < std::min(begin + distance, end); ++i) {
    Prefetch(order, i, job);
  }
  const int64_t max_rows = std::clamp<int64_t>(
      kBlockFloats / std::max<int64_t>(job.dim, 1), 1, kMaxRowsPerBlock);
  RowStepper stepper(job.update, job.dim, max_rows);
  while (begin < end) {
    const SummedRows sums = SumRows(order, begin, end, job, max_rows,
                                    stepper.rows(), stepper.gradients());
    stepper.Add(sums.num_rows);
    begin = sums.end;
  }
  stepper.Flush();
}

// Runs ApplyRange on ranges of about kEntriesPerTask entries, cut at the first
// entry of a row.
template <typename Order>
void ApplyAll(const Order& order, int64_t num_entries, const Job& job,
              Executor& executor) {
  const int64_t num_tasks = CeilDiv(num_entries, kEntriesPerTask);
  const auto row_start = [&order, num_entries](int64_t i) -> int64_t {
    if (i == 0 || i >= num_entries) return std::min(i, num_entries);
    const auto rest = std::views::iota(i, num_entries);
    const auto in_row_before = [&order, row = order.row(i - 1)](int64_t k) {
      return order.row(k) == row;
    };
    return *std::ranges::partition_point(rest, in_row_before);
  };
  executor.ParallelFor(num_tasks, [&order, &row_start, &job](int64_t task) {
    ApplyRange(order, row_start(task * kEntriesPerTask),
               row_start((task + 1) * kEntriesPerTask), job);
  });
}

// Whether the entries are one partition in ascending order of ids.
bool IsOrdered(const CooBuffers& buffers,
               std::span<const Partition> partitions) {
  if (partitions.size() != 1) return false;
  const auto [begin, end, first_row, first_sample, device] = partitions.front();
  if (first_row != 0 || first_sample != 0) return false;
  bool descends = false;  // no exit, so that the compiler vectorizes the loop
  for (int64_t i = begin + 1; i < end; ++i) {
    descends |= buffers.embedding_ids[i] < buffers.embedding_ids[i - 1];
  }
  return !descends;
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
      .gradient = {gradients, geometry.batch_size(), dim},
      .sample_bits = RowBits(geometry.num_devices, geometry.batch_size()),
      .dim = dim,
      .num_sources = geometry.num_sc_per_device,
      .batch_size_per_sc = geometry.batch_size_per_sc,
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
  if (num_entries == 0) return {};

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
  if (entries.empty()) return {};
  const Job job = MakeJob(*rule, geometry, gradients, dim, optimizer, tables);
  const auto sorted = SortByRow(entries, num_rows, executor);
  ApplyAll(SortedOrder{sorted.get()}, std::ssize(entries), job, executor);
  return {};
}

}  // namespace jte
