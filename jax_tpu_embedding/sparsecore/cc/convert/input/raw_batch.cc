// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/raw_array.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/input/sample_groups.h"

namespace jte::convert {
namespace {

using Runs = std::vector<StridedRun>;

// Numbers of one task: enough to hide its cost, and few enough to share.
constexpr int64_t kNumbersPerTask = 1 << 14;

// Calls visitor.operator()<T>() for a type that the converter reads.
template <typename Visitor>
auto VisitPlainType(DType dtype, Visitor visitor) {
  switch (dtype) {
    case DType::kInt32:
      return visitor.template operator()<int32_t>();
    case DType::kInt64:
      return visitor.template operator()<int64_t>();
    case DType::kUint32:
      return visitor.template operator()<uint32_t>();
    case DType::kUint64:
      return visitor.template operator()<uint64_t>();
    default:
      return visitor.template operator()<float>();
  }
}

DType IdTypeOf(const RawNumbers& ids) {
  CommonIdType type;
  if (const auto* array = std::get_if<StridedArray>(&ids)) {
    type.Add(array->type.dtype);
  } else {
    for (const StridedRun& run : std::get<Runs>(ids)) {
      if (run.size > 0) type.Add(run.type.dtype);
    }
  }
  return *type.Get();  // Callers have seen to it that there is one.
}

// A conversion that is independent of all others.
struct CopyTask {
  struct Elements {
    StridedArray array;
    int64_t begin;
    int64_t end;
  };
  std::variant<Elements, std::span<const StridedRun>> from;
  DType to;
  std::byte* out;

  void operator()() const {
    VisitPlainType(to, [this]<typename T>() {
      T* next = reinterpret_cast<T*>(out);
      if (const auto* elements = std::get_if<Elements>(&from)) {
        Convert(elements->array, elements->begin, elements->end, next);
        return;
      }
      Convert(std::get<std::span<const StridedRun>>(from), next);
    });
  }
};

// A feature whose ids come with the indices of their samples.
struct Grouping {
  const RawBatch* raw = nullptr;
  PreparedBatch* prepared = nullptr;
  StridedArray samples = {};  // int32 or int64, in the machine's byte order
  std::span<int64_t> row_splits = {};
  bool ascending = false;

  void Split() { ascending = SplitAscending(samples, row_splits); }

  // These are for samples that do not ascend.
  std::span<int64_t> samples_copy = {};
  int64_t first_out_of_range = -1;
  std::span<int64_t> cursors = {};
  std::span<int64_t> order = {};
  std::function<void()> move_ids = {};
  std::function<void()> move_weights = {};

  void Move() {
    first_out_of_range = CountSamples(samples, samples_copy, row_splits);
    if (first_out_of_range >= 0) return;
    OrderBySample(samples_copy, row_splits, cursors, order);
    move_ids();
    if (move_weights) move_weights();
  }
};

class Preparer {
 public:
  Preparer(std::span<const RawBatch> raw, Executor& executor)
      : raw_(raw), prepared_(raw.size()), executor_(executor) {}

  Result<std::vector<PreparedBatch>> PrepareAll() {
    for (size_t i = 0; i < raw_.size(); ++i) Plan(raw_[i], prepared_[i]);
    ForAll(copies_, [](CopyTask& copy) { copy(); });
    ForAll(groupings_, &Grouping::Split);
    std::erase_if(groupings_,
                  [](const Grouping& grouping) { return grouping.ascending; });
    for (Grouping& grouping : groupings_) PlanMove(grouping);
    ForAll(groupings_, &Grouping::Move);
    for (const Grouping& grouping : groupings_) {
      if (grouping.first_out_of_range >= 0) return OutOfRange(grouping);
    }
    return std::move(prepared_);
  }

 private:
  template <typename Task, typename Function>
  void ForAll(std::vector<Task>& tasks, Function function) {
    if (tasks.empty()) return;
    executor_.ParallelFor(std::ssize(tasks), [&tasks, function](int64_t i) {
      std::invoke(function, tasks[i]);
    });
  }

  template <typename T>
  static std::span<T> Allocate(PreparedBatch& prepared, int64_t size) {
    prepared.copies.push_back(
        std::make_unique_for_overwrite<std::byte[]>(size * sizeof(T)));
    return {reinterpret_cast<T*>(prepared.copies.back().get()),
            static_cast<size_t>(size)};
  }

  template <typename T>
  std::span<T> Copy(const StridedArray& array, DType dtype,
                    PreparedBatch& prepared) {
    const std::span<T> copy = Allocate<T>(prepared, array.size());
    for (int64_t begin = 0; begin < array.size(); begin += kNumbersPerTask) {
      const int64_t end = std::min(begin + kNumbersPerTask, array.size());
      copies_.push_back({.from = CopyTask::Elements{array, begin, end},
                         .to = dtype,
                         .out = reinterpret_cast<std::byte*>(&copy[begin])});
    }
    return copy;
  }

  template <typename T>
  std::span<T> Copy(std::span<const StridedRun> runs, DType dtype,
                    PreparedBatch& prepared) {
    int64_t total = 0;
    for (const StridedRun& run : runs) total += run.size;
    const std::span<T> copy = Allocate<T>(prepared, total);
    T* out = copy.data();
    while (!runs.empty()) {
      size_t num_runs = 0;
      int64_t size = 0;
      while (num_runs < runs.size() && size < kNumbersPerTask) {
        size += runs[num_runs++].size;
      }
      copies_.push_back({.from = runs.first(num_runs),
                         .to = dtype,
                         .out = reinterpret_cast<std::byte*>(out)});
      runs = runs.subspan(num_runs);
      out += size;
    }
    return copy;
  }

  // `numbers` as T: themselves if they are so, else a copy that is planned.
  template <typename T>
  std::span<const T> ViewOrCopy(const RawNumbers& numbers, DType dtype,
                                PreparedBatch& prepared) {
    const auto* array = std::get_if<StridedArray>(&numbers);
    if (array == nullptr) {
      return Copy<T>(std::get<Runs>(numbers), dtype, prepared);
    }
    if (array->IsPlain(dtype)) return array->View<T>();
    return Copy<T>(*array, dtype, prepared);
  }

  void Plan(const RawBatch& raw, PreparedBatch& prepared) {
    InputBatch& batch = prepared.batch;
    const DType dtype = IdTypeOf(raw.ids);
    VisitPlainType(dtype, [this, dtype, &raw, &batch, &prepared]<typename T>() {
      if constexpr (!std::is_same_v<T, float>) {
        batch.ids = ViewOrCopy<T>(raw.ids, dtype, prepared);
      }
    });
    if (raw.weights) {
      batch.weights =
          ViewOrCopy<float>(*raw.weights, DType::kFloat32, prepared);
    }
    std::visit(
        [this, &raw, &prepared](const auto& samples) {
          PlanSamples(raw, samples, prepared);
        },
        raw.samples);
  }

  void PlanSamples(const RawBatch& raw, const RowsOfArray&,
                   PreparedBatch& prepared) {
    const auto& shape = std::get<StridedArray>(raw.ids).shape;
    prepared.batch.num_samples = shape[0];
    prepared.batch.valency = shape[1];
  }

  void PlanSamples(const RawBatch&, const RowSplits& samples,
                   PreparedBatch& prepared) {
    SetRowSplits(prepared,
                 samples.are_private && samples.splits.IsPlain(DType::kInt64)
                     ? samples.splits.View<int64_t>()
                     : Copy<int64_t>(samples.splits, DType::kInt64, prepared));
  }

  void PlanSamples(const RawBatch& raw, const SampleIndices& indices,
                   PreparedBatch& prepared) {
    StridedArray samples = indices.samples;
    const ElementType type = samples.type;
    if (type.byte_swapped ||
        (type.dtype != DType::kInt32 && type.dtype != DType::kInt64)) {
      const auto copy = Copy<int64_t>(samples, DType::kInt64, prepared);
      samples = {.data = reinterpret_cast<const std::byte*>(copy.data()),
                 .type = {.dtype = DType::kInt64},
                 .shape = {std::ssize(copy), 1},
                 .strides = {sizeof(int64_t), 0}};
    }
    const auto splits = Allocate<int64_t>(prepared, indices.num_samples + 1);
    SetRowSplits(prepared, splits);
    groupings_.push_back({.raw = &raw,
                          .prepared = &prepared,
                          .samples = samples,
                          .row_splits = splits});
  }

  static void SetRowSplits(PreparedBatch& prepared,
                           std::span<const int64_t> splits) {
    prepared.batch.row_splits = splits;
    prepared.batch.num_samples = std::ssize(splits) - 1;
  }

  // Allocates what Grouping::Move writes, which may not throw.
  void PlanMove(Grouping& grouping) {
    PreparedBatch& prepared = *grouping.prepared;
    InputBatch& batch = prepared.batch;
    grouping.samples_copy =
        Allocate<int64_t>(prepared, grouping.samples.size());
    grouping.cursors = Allocate<int64_t>(prepared, batch.num_samples);
    grouping.order = Allocate<int64_t>(prepared, batch.num_ids());
    const auto move = [&prepared, order = std::span<const int64_t>(
                                      grouping.order)]<typename T>(
                          std::span<const T> from, auto& to) {
      const std::span<T> moved = Allocate<T>(prepared, std::ssize(from));
      to = moved;
      return [from, order, moved] {
        std::ranges::transform(order, moved.begin(),
                               [from](int64_t i) { return from[i]; });
      };
    };
    grouping.move_ids = std::visit(
        [move, &batch](auto ids) -> std::function<void()> {
          return move(ids, batch.ids);
        },
        IdSpan(batch.ids));
    if (batch.weights) {
      grouping.move_weights =
          move(std::span<const float>(*batch.weights), batch.weights);
    }
  }

  static std::unexpected<Error> OutOfRange(const Grouping& grouping) {
    const int64_t i = grouping.first_out_of_range;
    const int64_t num_samples = std::ssize(grouping.row_splits) - 1;
    return InvalidArgument(
        "Feature '", grouping.raw->feature_name, "': entry ", i,
        " is of sample ", grouping.samples_copy[i], ", outside of [0, ",
        num_samples,
        "), the samples that its shape has. Correct the indices or the shape.");
  }

  std::span<const RawBatch> raw_;
  std::vector<PreparedBatch> prepared_;
  Executor& executor_;
  std::vector<CopyTask> copies_;
  std::vector<Grouping> groupings_;
};

int64_t WorkFor(const StridedArray& array, DType dtype) {
  return array.IsPlain(dtype) ? 0 : array.size();
}

int64_t WorkFor(const Runs& runs) {
  int64_t size = 0;
  for (const StridedRun& run : runs) size += 1 + run.size;
  return size;
}

bool HasTooManyIds(const StridedArray& ids) {
  int64_t size = 0;
  return __builtin_mul_overflow(ids.shape[0], ids.shape[1], &size) ||
         size > kMaxIds;
}

bool HasTooManyIds(const Runs& ids) {
  int64_t room = kMaxIds;
  for (const StridedRun& run : ids) {
    if (run.size > room) return true;
    room -= run.size;
  }
  return false;
}

}  // namespace

Result<void> CheckNumIds(const RawBatch& raw) {
  if (!std::visit([](const auto& ids) { return HasTooManyIds(ids); },
                  raw.ids)) {
    return {};
  }
  return InvalidArgument("Feature '", raw.feature_name, "': has more than ",
                         kMaxIds,
                         " ids, which are too many for one step on one host. "
                         "Use smaller batches.");
}

int64_t PreparationWork(std::span<const RawBatch> raw) {
  int64_t work = 0;
  for (const RawBatch& batch : raw) {
    if (const auto* ids = std::get_if<StridedArray>(&batch.ids)) {
      work += WorkFor(*ids, IdTypeOf(batch.ids));
    } else {
      work += WorkFor(std::get<Runs>(batch.ids));
    }
    if (batch.weights) {
      const auto* weights = std::get_if<StridedArray>(&*batch.weights);
      work += weights ? WorkFor(*weights, DType::kFloat32)
                      : WorkFor(std::get<Runs>(*batch.weights));
    }
    if (const auto* splits = std::get_if<RowSplits>(&batch.samples)) {
      work += splits->are_private ? WorkFor(splits->splits, DType::kInt64)
                                  : splits->splits.size();
    }
    if (const auto* indices = std::get_if<SampleIndices>(&batch.samples)) {
      work += indices->samples.size() + indices->num_samples;
    }
  }
  return work;
}

Result<std::vector<PreparedBatch>> Prepare(std::span<const RawBatch> raw,
                                           Executor& executor) {
  return Preparer(raw, executor).PrepareAll();
}

}  // namespace jte::convert
