// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/apply_rows.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update_rules.h"

namespace jte {
namespace {

constexpr int kMaxSlots = 2;

// Small enough to share out skewed batches, large enough that taking a task and
// its first, unhidden memory accesses do not count.
constexpr int64_t kEntriesPerTask = 4096;

// Entries ordered by row, read from one partition of the buffers.
struct PartitionOrder {
  const int32_t* embedding_ids;
  const int32_t* sample_ids;
  const float* gains;

  int64_t row(int64_t i) const { return embedding_ids[i]; }
  int64_t sample(int64_t i) const { return sample_ids[i]; }
  float gain(int64_t i) const { return gains[i]; }
};

// Entries ordered by row, after SortByRow.
struct SortedOrder {
  const Entry* entries;

  int64_t row(int64_t i) const { return entries[i].row; }
  int64_t sample(int64_t i) const { return entries[i].sample; }
  float gain(int64_t i) const { return entries[i].gain; }
};

// Everything a task needs but its entries.
struct Job {
  const float* gradient;
  float* table;
  std::array<float*, kMaxSlots> slots;
  int64_t dim;
  int64_t num_sources;
  int64_t batch_size_per_sc;
  Optimizer optimizer;
};

// The entries [begin, end) of one row.
struct RowEntries {
  int64_t begin;
  int64_t end;
};

// One past the last sample of the source SparseCore that has `sample`.
inline int64_t SourceEnd(int64_t sample, const Job& job) {
  if (job.num_sources == 1) return job.batch_size_per_sc;  // no division
  return (sample / job.batch_size_per_sc + 1) * job.batch_size_per_sc;
}

// Adds the terms of the entries from `i` on to `sum`, up to `end` or the first
// sample from `sample_end` on; returns where it stopped.
template <int kWidth, typename Order>
[[gnu::always_inline]] inline int64_t AddTerms(const Order& order, int64_t i,
                                               int64_t end, int64_t sample_end,
                                               int64_t column, const Job& job,
                                               float* sum) {
  for (; i < end && order.sample(i) < sample_end; ++i) {
    const float* __restrict grad =
        job.gradient + order.sample(i) * job.dim + column;
    const float gain = order.gain(i);
    for (int d = 0; d < kWidth; ++d) sum[d] += gain * grad[d];
  }
  return i;
}

// Steps `kWidth` columns of one row. The sums stay in registers.
template <int kWidth, typename Rule, typename Order>
[[gnu::always_inline]] inline void StepColumns(const Order& order,
                                               RowEntries entries,
                                               int64_t column, const Job& job,
                                               const Rule& rule) {
  const auto [begin, end] = entries;
  float grad[kWidth] = {};
  // Partial sums per source SparseCore, which a source could send instead of
  // its entries without changing a bit of the result.
  int64_t i =
      AddTerms<kWidth>(order, begin, end, SourceEnd(order.sample(begin), job),
                       column, job, grad);
  while (i < end) {
    float partial[kWidth] = {};
    i = AddTerms<kWidth>(order, i, end, SourceEnd(order.sample(i), job), column,
                         job, partial);
    for (int d = 0; d < kWidth; ++d) grad[d] += partial[d];
  }

  const int64_t offset = order.row(begin) * job.dim + column;
  float* __restrict table = job.table + offset;
  std::array<float* __restrict, Rule::kNumSlots> slots;
  for (int k = 0; k < Rule::kNumSlots; ++k) slots[k] = job.slots[k] + offset;
  for (int d = 0; d < kWidth; ++d) {
    std::array<float, Rule::kNumSlots> slot;
    for (int k = 0; k < Rule::kNumSlots; ++k) slot[k] = slots[k][d];
    float weight = table[d];
    rule.Step(grad[d], weight, slot);
    // In this order of arguments a NaN stays one.
    weight = std::min(std::max(weight, job.optimizer.min_value),
                      job.optimizer.max_value);
    table[d] = weight;
    for (int k = 0; k < Rule::kNumSlots; ++k) slots[k][d] = slot[k];
  }
}

// Steps one row in pieces of the given widths, widest first.
template <int... kWidths, typename Rule, typename Order>
[[gnu::always_inline]] inline void StepRow(const Order& order,
                                           RowEntries entries, const Job& job,
                                           const Rule& rule) {
  int64_t column = 0;
  const auto step_pieces =
      [&order, &job, &rule, &column, entries]<int kWidth>()
          __attribute__((always_inline)) {
            for (; column + kWidth <= job.dim; column += kWidth) {
              StepColumns<kWidth>(order, entries, column, job, rule);
            }
          };
  (step_pieces.template operator()<kWidths>(), ...);
}

// Asks for the memory that entry `i` needs.
template <typename Rule, typename Order>
[[gnu::always_inline]] inline void Prefetch(const Order& order, int64_t i,
                                            const Job& job) {
  PrefetchToRead(job.gradient + order.sample(i) * job.dim, job.dim);
  const int64_t offset = order.row(i) * job.dim;
  PrefetchToWrite(job.table + offset, job.dim);
  for (int k = 0; k < Rule::kNumSlots; ++k) {
    PrefetchToWrite(job.slots[k] + offset, job.dim);
  }
}

// Steps every row whose entries are in [begin, end), which are all its entries.
template <typename Rule, typename Order>
JTE_VECTOR_CLONES void ApplyRange(const Order& order, int64_t begin,
                                  int64_t end, const Job& job) {
  const Rule rule(job.optimizer.hyperparameters.data());
  const int64_t distance = PrefetchDistance(job.dim);
  for (int64_t i = begin; i < std::min(begin + distance, end); ++i) {
    Prefetch<Rule>(order, i, job);
  }
  for (int64_t row_begin = begin; row_begin < end;) {
    const int64_t row = order.row(row_begin);
    int64_t row_end = row_begin;
    do {
      if (row_end + distance < end) {
        Prefetch<Rule>(order, row_end + distance, job);
      }
      ++row_end;
    } while (row_end < end && order.row(row_end) == row);

    StepRow<64, 32, 16, 8, 1>(order, RowEntries{row_begin, row_end}, job, rule);
    row_begin = row_end;
  }
}

// Runs ApplyRange on ranges of about kEntriesPerTask entries, cut at the first
// entry of a row.
template <typename Rule, typename Order>
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
    ApplyRange<Rule>(order, row_start(task * kEntriesPerTask),
                     row_start((task + 1) * kEntriesPerTask), job);
  });
}

// Whether the entries are one partition in ascending order of ids.
bool IsOrdered(const CooBuffers& buffers,
               std::span<const Partition> partitions) {
  if (partitions.size() != 1) return false;
  const auto [begin, end, first_row, first_sample] = partitions.front();
  if (first_row != 0 || first_sample != 0) return false;
  bool descends = false;  // no exit, so that the compiler vectorizes the loop
  for (int64_t i = begin + 1; i < end; ++i) {
    descends |= buffers.embedding_ids[i] < buffers.embedding_ids[i - 1];
  }
  return !descends;
}

// What ApplyRows needs to know of a rule.
struct Kernel {
  std::string_view rule;
  int num_slots;
  int num_hyperparameters;
  void (*apply_partition)(const PartitionOrder&, int64_t, const Job&,
                          Executor&);
  void (*apply_sorted)(const SortedOrder&, int64_t, const Job&, Executor&);
};

template <typename Rule>
constexpr Kernel MakeKernel(std::string_view rule) {
  static_assert(Rule::kNumSlots <= kMaxSlots);
  return {rule, Rule::kNumSlots, Rule::kNumHyperparameters,
          ApplyAll<Rule, PartitionOrder>, ApplyAll<Rule, SortedOrder>};
}

constexpr Kernel kKernels[] = {
    MakeKernel<SgdRule>("sgd"),
    MakeKernel<AdagradRule>("adagrad"),
    MakeKernel<AdamRule>("adam"),
};

Result<const Kernel*> FindKernel(const Optimizer& optimizer,
                                 const Tables& tables) {
  const auto kernel =
      std::ranges::find(kKernels, optimizer.rule, &Kernel::rule);
  if (kernel == std::end(kKernels)) {
    return InvalidArgument("There is no update rule '", optimizer.rule,
                           "'; choose sgd, adagrad or adam.");
  }
  if (std::ssize(tables.slots) != kernel->num_slots) {
    return InvalidArgument("Update rule '", optimizer.rule, "' has ",
                           kernel->num_slots, " slots, got ",
                           tables.slots.size(), ".");
  }
  if (std::ssize(optimizer.hyperparameters) != kernel->num_hyperparameters) {
    return InvalidArgument(
        "Update rule '", optimizer.rule, "' has ", kernel->num_hyperparameters,
        " hyperparameters, got ", optimizer.hyperparameters.size(), ".");
  }
  return kernel;
}

}  // namespace

Result<void> ApplyRows(const CooBuffers& buffers, const CooGeometry& geometry,
                       std::span<const float> activation_gradient, int64_t dim,
                       const Optimizer& optimizer, const Tables& tables,
                       Executor& executor) {
  const auto kernel = FindKernel(optimizer, tables);
  if (!kernel) return std::unexpected(kernel.error());
  const auto partitions = ReadPartitions(buffers, geometry);
  if (!partitions) return std::unexpected(partitions.error());
  if (auto checked = CheckEntries(buffers, *partitions, geometry, executor);
      !checked) {
    return checked;
  }

  Job job{
      .gradient = activation_gradient.data(),
      .table = tables.table.data(),
      .slots = {},
      .dim = dim,
      .num_sources = geometry.num_sc_per_device,
      .batch_size_per_sc = geometry.batch_size_per_sc,
      .optimizer = optimizer,
  };
  for (size_t k = 0; k < tables.slots.size(); ++k) {
    job.slots[k] = tables.slots[k].data();
  }

  const int64_t num_entries = CountEntries(*partitions);
  if (num_entries == 0) return {};
  if (IsOrdered(buffers, *partitions)) {
    const int64_t begin = partitions->front().begin;
    const PartitionOrder order{buffers.embedding_ids.data() + begin,
                               buffers.sample_ids.data() + begin,
                               buffers.gains.data() + begin};
    (*kernel)->apply_partition(order, num_entries, job, executor);
  } else {
    const auto entries = SortByRow(
        {buffers, *partitions}, num_entries,
        geometry.num_sc_per_device * geometry.rows_per_shard, executor);
    (*kernel)->apply_sorted({entries.get()}, num_entries, job, executor);
  }
  return {};
}

}  // namespace jte
