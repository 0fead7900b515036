// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/serving/embedding_tables.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/default_float_environment.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/scratch_pool.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/gains.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/mapped_table.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/pool_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/serving/sample_rows.h"

namespace jte::serving {
namespace {

// Ids and samples of a task, as for lookups of training (lookup_ids.cc): what
// is known of their rows stays in the second-level cache until they are added
// up.
constexpr int64_t kWorkPerTask = 4096;

// Changed rows that a task copies, and how far ahead their places are asked
// for.
constexpr int64_t kRowsPerTask = 16384;
constexpr int64_t kPlacesAhead = 32;

struct Task {
  const Request* request;
  int64_t begin;  // samples
  int64_t end;
};

// Where a request's samples are cut. Row splits are checked by the tasks, which
// read them once: here a wrong one makes tasks uneven and nothing worse.
void Cut(const Request& request, std::vector<Task>& tasks) {
  const int64_t num_samples = request.num_samples();
  const int64_t work = NumIds(request.ids) + num_samples;
  const int64_t num_tasks =
      std::clamp<int64_t>(CeilDiv(work, kWorkPerTask), 1, num_samples);
  int64_t begin = 0;
  for (int64_t task = 1; task <= num_tasks; ++task) {
    int64_t end = num_samples * task / num_tasks;
    if (request.kind == Request::Kind::kSplits && task < num_tasks) {
      const int64_t wanted = work * task / num_tasks;
      int64_t high = num_samples;
      for (end = begin; end < high;) {
        const int64_t middle = end + (high - end) / 2;
        // No sum, as a split may be any number.
        if (request.row_splits[middle] < wanted - middle) {
          end = middle + 1;
        } else {
          high = middle;
        }
      }
    }
    if (begin < end) tasks.push_back({&request, begin, end});
    begin = end;
  }
}

// Rows follow `previous`, which becomes the last of them.
Result<void> CheckAscending(const MappedTable& table, const char* what,
                            std::span<const int64_t> rows, int64_t& previous) {
  for (const int64_t row : rows) {
    if (row <= previous || row >= table.rows()) {
      return InvalidArgument(
          "Table '", table.name(), "': ", what, " row ", row, " follows row ",
          previous, ", expected ascending rows below ", table.rows(), ".");
    }
    previous = row;
  }
  return {};
}

// The memory of rows, neighbours in one piece.
void AddPages(const MappedTable& table, std::span<const int64_t> rows,
              std::vector<std::span<std::byte>>& memory) {
  constexpr std::ptrdiff_t kPage = 4096;
  for (const int64_t row : rows) {
    std::byte* const data = table.MutableRow(row);
    std::byte* const end = data + table.row_bytes();
    if (!memory.empty()) {
      std::span<std::byte>& last = memory.back();
      std::byte* const last_end = last.data() + last.size();
      if (data >= last_end && data - last_end < kPage) {
        last = {last.data(), end};
        continue;
      }
    }
    memory.emplace_back(data, end);
  }
}

}  // namespace

int64_t Request::num_samples() const {
  switch (kind) {
    case Kind::kRows:
      return NumIds(ids);
    case Kind::kMatrix:
      return valency > 0 ? NumIds(ids) / valency : 0;
    case Kind::kSplits:
      return std::max<int64_t>(std::ssize(row_splits) - 1, 0);
  }
  return 0;
}

Result<std::unique_ptr<EmbeddingTables>> EmbeddingTables::Open(
    std::vector<TableDescription> tables, int64_t version,
    OutOfRange out_of_range, Executor* copier) {
  std::vector<MappedTable> mapped;
  mapped.reserve(tables.size());
  for (TableDescription& table : tables) {
    JTE_ASSIGN_OR_RETURN(MappedTable rows,
                         MappedTable::Map(std::move(table), copier));
    mapped.push_back(std::move(rows));
  }
  return std::unique_ptr<EmbeddingTables>(
      new EmbeddingTables(std::move(mapped), version, out_of_range));
}

Result<void> EmbeddingTables::Check(const Request& request) const {
  if (request.table < 0 || request.table >= std::ssize(tables_)) {
    return InvalidArgument("There is no table number ", request.table,
                           ", expected one of ", tables_.size(), ".");
  }
  const MappedTable& table = tables_[request.table];
  const int64_t num_ids = NumIds(request.ids);
  if (request.kind == Request::Kind::kSplits) {
    const std::span<const int64_t> splits = request.row_splits;
    if (splits.empty() || splits.front() != 0 || splits.back() != num_ids) {
      return InvalidArgument(
          "Table '", table.name(), "': row_splits go from ",
          splits.empty() ? 0 : splits.front(), " to ",
          splits.empty() ? 0 : splits.back(), " in ", splits.size(),
          " numbers, expected them to go from 0 to ", num_ids,
          ", the number of ids, in one more than there are samples.");
    }
  }
  if (request.kind == Request::Kind::kMatrix &&
      (request.valency < 1 || num_ids % request.valency != 0)) {
    return InvalidArgument("Table '", table.name(), "': ", num_ids,
                           " ids are no samples of ", request.valency,
                           " each.");
  }
  const int64_t num_samples = request.num_samples();
  const int64_t columns = request.columns.value_or(table.columns());
  if (columns < 1 || columns > table.columns()) {
    return InvalidArgument("Table '", table.name(), "': ", columns,
                           " columns are asked for, expected from 1 to its ",
                           table.columns(), ".");
  }
  if (std::ssize(request.out) != num_samples * columns) {
    return InvalidArgument("Table '", table.name(), "': out has ",
                           request.out.size(), " values, expected ",
                           num_samples, " rows of ", columns, ".");
  }
  if (!request.weights) return {};
  if (std::ssize(*request.weights) != num_ids) {
    return InvalidArgument("Table '", table.name(), "': there are ",
                           request.weights->size(), " weights for ", num_ids,
                           " ids, expected as many.");
  }
  if (convert::AreFinite(*request.weights)) return {};
  const auto wrong = std::ranges::find_if_not(
      *request.weights, [](float w) { return std::isfinite(w); });
  return InvalidArgument("Table '", table.name(), "': weight ",
                         wrong == request.weights->end() ? 0.0f : *wrong,
                         " at position ", wrong - request.weights->begin(),
                         " is not finite.");
}

Result<void> EmbeddingTables::WrongId(const Request& request, int64_t first_id,
                                      int64_t last_id) const {
  const MappedTable& table = tables_[request.table];
  return std::visit(
      [&table, first_id, last_id](auto ids) -> Result<void> {
        for (int64_t i = first_id; i < last_id; ++i) {
          const auto id = static_cast<int64_t>(ids[i]);
          if (id >= 0 && id < table.rows()) continue;
          return InvalidArgument("Table '", table.name(), "': id ", id,
                                 " at position ", i,
                                 " is not one of its rows, [0, ", table.rows(),
                                 "). Pass ids of rows, or open the tables with "
                                 "out_of_range=\"zero\".");
        }
        return InvalidArgument("Table '", table.name(),
                               "': an id that is not one of its rows was "
                               "written over meanwhile.");
      },
      request.ids);
}

Result<void> EmbeddingTables::LookUp(const Request& request, int64_t begin,
                                     int64_t end, SampleRows& scratch) const {
  const int64_t all = tables_[request.table].columns();
  const int64_t columns = request.columns.value_or(all);
  float* const out = request.out.data() + begin * columns;
  if (columns == all) return LookUpWhole(request, begin, end, scratch, out);
  const std::span<float> whole = scratch.whole.Take((end - begin) * all);
  JTE_RETURN_IF_ERROR(LookUpWhole(request, begin, end, scratch, whole.data()));
  for (int64_t s = 0; s < end - begin; ++s) {
    std::copy_n(whole.data() + s * all, columns, out + s * columns);
  }
  return {};
}

Result<void> EmbeddingTables::LookUpWhole(const Request& request, int64_t begin,
                                          int64_t end, SampleRows& scratch,
                                          float* out) const {
  const MappedTable& table = tables_[request.table];
  if (request.kind == Request::Kind::kRows) {
    const Ids ids = std::visit(
        [begin, end](auto span) -> Ids {
          return span.subspan(begin, end - begin);
        },
        request.ids);
    if (!scratch.ReadEach(table, ids) && out_of_range_ == OutOfRange::kError) {
      return WrongId(request, begin, end);
    }
    ReadRows(table.encoding(), table.columns(), scratch.each(), out);
    return {};
  }
  // A copy, which stays what was checked.
  const std::span<int64_t> splits = scratch.splits.Take(end - begin + 1);
  for (int64_t s = begin; s <= end; ++s) {
    splits[s - begin] = request.kind == Request::Kind::kSplits
                            ? request.row_splits[s]
                            : s * request.valency;
  }
  int64_t previous = 0;
  for (int64_t s = 0; s < std::ssize(splits); ++s) {
    if (splits[s] < previous || splits[s] > NumIds(request.ids)) {
      return InvalidArgument(
          "Table '", table.name(), "': row_splits[", begin + s, "] is ",
          splits[s], " after ", previous,
          ", expected numbers that ascend to that of the ids, ",
          NumIds(request.ids), ".");
    }
    previous = splits[s];
  }
  if (!scratch.Read(
          table, request.combiner.value_or(table.combiner()), request.ids,
          request.weights.value_or(std::span<const float>()), splits) &&
      out_of_range_ == OutOfRange::kError) {
    return WrongId(request, splits.front(), splits.back());
  }
  if (const auto sample = scratch.overflowing_sample()) {
    return InvalidArgument(
        "Table '", table.name(), "': sample ", begin + *sample,
        " has weights that the combiner divides by more than float32 can hold. "
        "Scale the weights of the sample, which changes no result.");
  }
  PoolRows(table.encoding(), table.columns(), scratch.rows(), scratch.ends(),
           out);
  return {};
}

Result<void> EmbeddingTables::LookHeld(std::span<const Request> requests,
                                       Executor& executor) const {
  // Threads that an executor starts inherit it.
  const ScopedDefaultFloatEnvironment as_in_training;
  std::vector<Task> tasks;
  for (const Request& request : requests) {
    JTE_RETURN_IF_ERROR(Check(request));
    if (request.num_samples() > 0) Cut(request, tasks);
  }
  ScratchPool<SampleRows> pool;
  std::vector<Result<void>> done(tasks.size());
  executor.ParallelFor(std::ssize(tasks), [this, &tasks, &pool,
                                           &done](int64_t i) {
    auto scratch = pool.Take();
    done[i] = LookUp(*tasks[i].request, tasks[i].begin, tasks[i].end, *scratch);
    pool.Return(std::move(scratch));
  });
  for (const Result<void>& result : done) JTE_RETURN_IF_ERROR(result);
  return {};
}

Result<void> EmbeddingTables::Check(const RowChanges& changes) const {
  if (changes.table < 0 || changes.table >= std::ssize(tables_)) {
    return InvalidArgument("There is no table number ", changes.table,
                           ", expected one of ", tables_.size(), ".");
  }
  const MappedTable& table = tables_[changes.table];
  const int64_t num_rows = std::ssize(changes.rows);
  if (std::ssize(changes.values) != num_rows * table.row_bytes()) {
    return InvalidArgument("Table '", table.name(), "': ", num_rows,
                           " changed rows have ", changes.values.size(),
                           " bytes, expected ", table.row_bytes(), " each.");
  }
  return {};
}

Result<void> EmbeddingTables::Apply(std::span<const RowChanges> changes,
                                    int64_t version, Executor& executor) {
  struct Task {
    const RowChanges* changes;
    int64_t begin;
    int64_t end;
  };
  std::vector<Task> tasks;
  std::vector<std::span<std::byte>> memory;
  std::vector<int64_t> last_changed(tables_.size(), -1);
  std::vector<int64_t> last_deleted(tables_.size(), -1);
  for (const RowChanges& of_table : changes) {
    JTE_RETURN_IF_ERROR(Check(of_table));
    const MappedTable& table = tables_[of_table.table];
    JTE_RETURN_IF_ERROR(CheckAscending(table, "changed", of_table.rows,
                                       last_changed[of_table.table]));
    JTE_RETURN_IF_ERROR(CheckAscending(table, "deleted", of_table.deleted,
                                       last_deleted[of_table.table]));
    const int64_t num_rows = std::ssize(of_table.rows);
    for (int64_t begin = 0; begin < num_rows; begin += kRowsPerTask) {
      tasks.push_back(
          {&of_table, begin, std::min(begin + kRowsPerTask, num_rows)});
    }
    AddPages(table, of_table.rows, memory);
    AddPages(table, of_table.deleted, memory);
  }
  PopulatePages(std::move(memory), executor, /*least_bytes=*/0);

  const std::unique_lock alone(lock_);
  executor.ParallelFor(std::ssize(tasks), [this, &tasks](int64_t i) {
    const auto [of_table, begin, end] = tasks[i];
    const MappedTable& table = tables_[of_table->table];
    const int64_t row_bytes = table.row_bytes();
    for (int64_t k = begin; k < end; ++k) {
      if (k + kPlacesAhead < end) {
        std::byte* const later =
            table.MutableRow(of_table->rows[k + kPlacesAhead]);
        __builtin_prefetch(later, /*rw=*/1);
        __builtin_prefetch(later + row_bytes - 1, /*rw=*/1);
      }
      std::memcpy(table.MutableRow(of_table->rows[k]),
                  of_table->values.data() + k * row_bytes, row_bytes);
    }
  });
  for (const RowChanges& of_table : changes) {
    const MappedTable& table = tables_[of_table.table];
    for (const int64_t row : of_table.deleted) {
      std::memset(table.MutableRow(row), 0, table.row_bytes());
    }
  }
  version_ = version;
  return {};
}

}  // namespace jte::serving
