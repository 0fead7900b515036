// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_gradients.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/vector_clones.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/sort_entries.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/prefetch.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/spread_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/hot_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_ranges.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/sum_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::kernels {

namespace {

// Entries ordered by row, as tasks: ranges of about kEntriesPerTask entries,
// cut at the first entry of a row.
struct Tasks {
  int64_t num_entries;
  std::vector<int64_t> places;  // of the first row of each, and the last's end

  int64_t size() const { return std::ssize(places) - 1; }
  int64_t num_rows() const { return places.back(); }
  template <typename Order>
  int64_t Begin(const Order& order, int64_t task) const {
    return RowStart(order, task * kEntriesPerTask, num_entries);
  }
};

// The number of rows whose first entry is in [begin, end).
template <typename Order>
int64_t CountRows(const Order& order, int64_t begin, int64_t end) {
  int64_t count = begin == 0 || order.row(begin) != order.row(begin - 1);
  for (int64_t i = begin + 1; i < end; ++i) {
    count += order.row(i) != order.row(i - 1);
  }
  return count;
}

// Counts the rows of each task, so that it knows where they go.
template <typename Order>
Result<Tasks> MakeTasks(const Order& order, int64_t num_entries,
                        int64_t capacity, Executor& executor) {
  const int64_t num_tasks = CeilDiv(num_entries, kEntriesPerTask);
  Tasks tasks{.num_entries = num_entries,
              .places = std::vector<int64_t>(num_tasks + 1)};
  executor.ParallelFor(num_tasks, [&order, &tasks](int64_t task) {
    const int64_t begin = task * kEntriesPerTask;
    tasks.places[task + 1] = CountRows(
        order, begin, std::min(begin + kEntriesPerTask, tasks.num_entries));
  });
  std::partial_sum(tasks.places.begin(), tasks.places.end(),
                   tasks.places.begin());
  if (tasks.num_rows() <= capacity) return tasks;
  return InvalidArgument("There are ", tasks.num_rows(),
                         " distinct rows, and room for the gradients of ",
                         capacity,
                         ". Raise max_unique_ids_per_partition; the number of "
                         "ids of a device is always enough.");
}

// Makes all results from `begin` on padding.
void PadFrom(int64_t begin, const SparseRows& results, int64_t dim,
             Executor& executor) {
  const int64_t end = std::ssize(results.rows);
  executor.ParallelFor(
      CeilDiv(end - begin, kEntriesPerTask),
      [&results, begin, end, dim](int64_t task) {
        const int64_t first = begin + task * kEntriesPerTask;
        const int64_t size = std::min(kEntriesPerTask, end - first);
        std::fill_n(results.rows.data() + first, size, kPaddingId);
        std::fill_n(results.values.data() + first * dim, size * dim, 0.0f);
      });
}

// Everything a task of GradientsOfRows needs but its entries.
struct Job {
  ActivationGradient gradient;
  int64_t num_samples;
  std::span<const EntryRange> hot;
  std::span<int64_t> hot_places;  // in the results, of `hot`
  SparseRows results;
};

// Sums the rows whose entries are in [begin, end), which are all their entries,
// to `place` of the results and those after it. Returns the next place.
template <typename Order>
int64_t SumRange(const Order& order, int64_t begin, int64_t end, const Job& job,
                 int64_t place) {
  if (begin == end) return place;
  const SummedRows sums =
      SumRows(order, begin, end, job.gradient,
              /*max_rows=*/std::ssize(job.results.rows) - place,
              job.results.rows.data() + place,
              job.results.values.data() + place * job.gradient.dim);
  return place + sums.num_rows;
}

// The same, but for hot rows, which get a place.
template <typename Order>
void SumOthers(const Order& order, int64_t begin, int64_t end, const Job& job,
               int64_t place) {
  auto row = std::ranges::lower_bound(job.hot, begin, {}, &EntryRange::begin);
  for (; row != job.hot.end() && row->begin < end; ++row) {
    place = SumRange(order, begin, row->begin, job, place);
    job.hot_places[row - job.hot.begin()] = place++;
    begin = row->end;
  }
  SumRange(order, begin, end, job, place);
}

// Sums a part of the hot rows, which have their places.
template <typename Order>
void SumHot(const Order& order, std::span<const EntryRange> part,
            const Job& job) {
  const int64_t dim = job.gradient.dim;
  const std::vector<float> sums =
      SumHotRows(order, part, job.gradient, job.num_samples);
  const int64_t* places =
      job.hot_places.data() + (part.data() - job.hot.data());
  for (int64_t i = 0; i < std::ssize(part); ++i) {
    job.results.rows[places[i]] = order.row(part[i].begin);
    std::copy_n(sums.data() + i * dim, dim,
                job.results.values.data() + places[i] * dim);
  }
}

// Sums all rows.
template <typename Order>
Result<void> SumAll(const Order& order, int64_t num_entries, Job job,
                    Executor& executor) {
  JTE_ASSIGN_OR_RETURN(
      const auto tasks,
      MakeTasks(order, num_entries, std::ssize(job.results.rows), executor));
  std::vector<EntryRange> hot;
  if (HotRowsPay(job.gradient, job.num_samples)) {
    hot = FindHotRows(order, num_entries);
  }
  std::vector<int64_t> hot_places(hot.size());
  job.hot = hot;
  job.hot_places = hot_places;
  executor.ParallelFor(tasks.size(), [&order, &job, &tasks](int64_t task) {
    SumOthers(order, tasks.Begin(order, task), tasks.Begin(order, task + 1),
              job, tasks.places[task]);
  });
  const auto parts = CutByEntries(hot, executor.num_threads());
  executor.ParallelFor(std::ssize(parts), [&order, &job, &parts](int64_t part) {
    SumHot(order, parts[part], job);
  });
  PadFrom(tasks.num_rows(), job.results, job.gradient.dim, executor);
  return {};
}

// Adds terms: the rows and sums of [begin, end), whole rows, from `rows` and
// `sums` on. Each value is read once, and prefetched from anywhere in memory.
JTE_VECTOR_CLONES
void AddValues(const Entry* entries, int64_t begin, int64_t end,
               const SpreadRows<float>& all_values, int64_t dim,
               int32_t* __restrict rows, float* __restrict sums) {
  const SpreadRows<float> values = all_values;  // stays in registers
  const int64_t distance = PrefetchDistance(dim * sizeof(float));
  int64_t place = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t ahead = std::min(i + distance, end - 1);
    PrefetchTableRow(values[entries[ahead].sample], dim * sizeof(float));
    const float* __restrict value = values[entries[i].sample];
    const bool is_first = i == begin || entries[i].row != entries[i - 1].row;
    place += is_first;
    rows[place] = entries[i].row;
    float* __restrict sum = sums + place * dim;
    if (is_first) {
      for (int64_t d = 0; d < dim; ++d) sum[d] = 0.0f + value[d];
    } else {
      for (int64_t d = 0; d < dim; ++d) sum[d] += value[d];
    }
  }
}

// The entries that stand for `terms`, ordered by row; the sample of each is the
// number of its values in SpreadRows with `bits`.
std::unique_ptr<Entry[]> SortTerms(std::span<const ConstSparseRows> terms,
                                   int bits, int64_t& num_entries,
                                   Executor& executor) {
  std::vector<Entry> entries;
  int32_t smallest = 0;
  int32_t largest = 0;
  for (int64_t k = 0; k < std::ssize(terms); ++k) {
    const std::span<const int32_t> rows = terms[k].rows;
    entries.reserve(entries.size() + rows.size());
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      if (rows[i] == kPaddingId) continue;
      smallest = std::min(smallest, rows[i]);
      largest = std::max(largest, rows[i]);
      entries.push_back({.row = rows[i],
                         .sample = static_cast<int32_t>((k << bits) + i),
                         .gain = 1.0f});
    }
  }
  num_entries = std::ssize(entries);
  // The bits of negative numbers sort behind those of others.
  const int64_t num_rows = smallest < 0 ? int64_t{kPaddingId} : largest + 1;
  auto sorted = SortByRow(entries, num_rows, executor);
  const std::span<Entry> all(sorted.get(), num_entries);
  std::ranges::rotate(
      all, std::ranges::partition_point(
               all, [](int32_t row) { return row >= 0; }, &Entry::row));
  return sorted;
}

}  // namespace

Result<void> GradientsOfRows(const CooBuffers& buffers,
                             const CooGeometry& geometry,
                             std::span<const float> activation_gradient,
                             int64_t dim, const SparseRows& results,
                             Executor& executor) {
  JTE_ASSIGN_OR_RETURN(const auto partitions,
                       ReadPartitions(buffers, geometry));
  JTE_RETURN_IF_ERROR(CheckEntries(buffers, partitions, geometry, executor));
  const int64_t num_entries = CountEntries(partitions);
  const float* const gradients[] = {activation_gradient.data()};
  const Job job{
      .gradient = MakeActivationGradient(gradients, geometry.num_sc_per_device,
                                         geometry.batch_size_per_sc, dim),
      .num_samples = geometry.batch_size(),
      .hot = {},
      .hot_places = {},
      .results = results};
  if (IsOrdered(buffers, partitions)) {
    const int64_t begin = partitions.front().begin;
    const PartitionOrder order{buffers.embedding_ids.data() + begin,
                               buffers.sample_ids.data() + begin,
                               buffers.gains.data() + begin};
    return SumAll(order, num_entries, job, executor);
  }
  const auto entries = SortByRow({buffers, partitions}, num_entries,
                                 geometry.rows_per_device(), executor);
  return SumAll(SortedOrder{entries.get()}, num_entries, job, executor);
}

Result<void> SumOfRows(std::span<const ConstSparseRows> terms, int64_t dim,
                       const SparseRows& results, Executor& executor) {
  const int64_t num_terms = std::ssize(terms);
  std::vector<const float*> values;
  int64_t longest = 1;
  for (const ConstSparseRows& term : terms) {
    values.push_back(term.values.data());
    longest = std::max(longest, std::ssize(term.rows));
  }
  if (!NumbersFit(num_terms, longest, 31)) {
    return InvalidArgument("There are ", num_terms, " gradients with up to ",
                           longest,
                           " rows, expected numbers of 31 bits for all of "
                           "these. Add fewer at once.");
  }
  int64_t num_entries = 0;
  const auto entries =
      SortTerms(terms, RowBits(num_terms, longest), num_entries, executor);
  const SortedOrder order{entries.get()};
  JTE_ASSIGN_OR_RETURN(
      const auto tasks,
      MakeTasks(order, num_entries, std::ssize(results.rows), executor));
  const SpreadRows<float> from(values, longest, dim);
  executor.ParallelFor(tasks.size(), [&entries, &order, &tasks, &from, &results,
                                      dim](int64_t task) {
    const int64_t place = tasks.places[task];
    AddValues(entries.get(), tasks.Begin(order, task),
              tasks.Begin(order, task + 1), from, dim,
              results.rows.data() + place, results.values.data() + place * dim);
  });
  PadFrom(tasks.num_rows(), results, dim, executor);
  return {};
}

}  // namespace jte::kernels
