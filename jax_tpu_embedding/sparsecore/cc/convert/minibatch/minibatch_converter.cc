// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_converter.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <expected>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/csr_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/buckets.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/fill_minibatches.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_split.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte::convert {
namespace {

// This host's part of a conversion, phase by phase. Between the phases the
// other hosts are asked. The phases are called in this order. One that failed
// ends the conversion.
class LocalConversion {
 public:
  // At least one stack; all have one topology.
  LocalConversion(std::span<const StackPlan> stacks, Executor& executor);
  ~LocalConversion();

  // Extracts, sorts and counts. Errors: those of ExtractIds.
  Result<void> Count();

  // Whether a partition exceeds a limit.
  bool exceeds_limits() const { return exceeds_limits_; }

  // Only if some host exceeds its limits. Count did it where it knew that.
  Result<void> SortIntoBuckets();

  // The boundaries between minibatches that this host needs.
  uint64_t split_bits() const { return split_bits_; }

  // Writes all of `buffers`.
  Result<void> Fill(const MinibatchSplit& split,
                    std::span<const CsrBuffers> buffers);

  // The end. Errors: buckets beyond a limit and buffers that are too
  // small, all in one message, unless ids may be dropped.
  Result<std::vector<StackStats>> TakeStats(bool allow_id_dropping);

 private:
  using SpareElements = ScratchArray<uint64_t>;

  struct SparseCore {
    std::unique_ptr<Scratch> scratch;  // of Count, until the end
    SortedIds ids;
    PartitionTable table;
    PartitionTable minibatches;  // of Fill
    int64_t kept_cells = 0;
    FillReport report;
  };

  Result<void> CountSparseCore(const SparseCoreTask& task);
  void SortSparseCore(const SparseCoreTask& task);
  void ReturnSpare(SparseCore& sc, std::unique_ptr<SpareElements> spare);
  void PlanCells(const SparseCoreTask& task, const MinibatchSplit& split);
  void FillSparseCore(const SparseCoreTask& task, const MinibatchSplit& split,
                      const CsrBuffers& device);

  std::span<const StackPlan> stacks_;
  Executor& executor_;
  std::vector<SparseCore> sparse_cores_;  // by SparseCoreTask::index
  std::deque<SharedStats> stats_;         // by stack
  ScratchPool<Scratch> scratch_pool_;
  ScratchPool<SpareElements> spare_pool_;
  ScratchPool<RowScratch> row_scratch_pool_;
  std::atomic<bool> exceeds_limits_ = false;
  std::atomic<uint64_t> split_bits_ = 0;
};

PartitionName NameOf(const PartitionTable& table, size_t index) {
  const auto num_buckets = static_cast<size_t>(table.num_buckets);
  PartitionName name = {.partition =
                            static_cast<uint32_t>(index / num_buckets)};
  if (num_buckets > 1) name.bucket = static_cast<int32_t>(index % num_buckets);
  return name;
}

bool AllKept(const PartitionTable& table) {
  return std::ranges::all_of(table.counts, [](const BucketCounts& counts) {
    return counts.num_kept_ids == counts.num_ids;
  });
}

LargestPartition LargestOf(const PartitionTable& table,
                           uint32_t BucketCounts::* count_of) {
  uint32_t largest = 0;
  for (const BucketCounts& counts : table.counts) {
    largest = std::max(largest, counts.*count_of);
  }
  const auto first = std::ranges::find(table.counts, largest, count_of);
  return {.count = largest,
          .name = NameOf(table, first - table.counts.begin())};
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

LocalConversion::LocalConversion(std::span<const StackPlan> stacks,
                                 Executor& executor)
    : stacks_(stacks),
      executor_(executor),
      sparse_cores_(stacks.size() * NumLocalScs(stacks.front().topology)) {
  for (const StackPlan& plan : stacks) stats_.emplace_back(plan.topology);
}

LocalConversion::~LocalConversion() {
  // In reverse order: the next batch, which takes the last one first, then has
  // most SparseCores find memory of their size.
  for (SparseCore& sc : sparse_cores_ | std::views::reverse) {
    if (sc.scratch) scratch_pool_.Return(std::move(sc.scratch));
  }
}

Result<void> LocalConversion::Count() {
  return ForEachSparseCore(
      stacks_, executor_,
      [this](const SparseCoreTask& task) { return CountSparseCore(task); });
}

Result<void> LocalConversion::CountSparseCore(const SparseCoreTask& task) {
  const StackPlan& plan = stacks_[task.stack];
  SparseCore& sc = sparse_cores_[task.index];
  sc.scratch = scratch_pool_.Take();
  auto spare = spare_pool_.Take();
  std::swap(sc.scratch->sorted_elements, *spare);
  JTE_ASSIGN_OR_RETURN(sc.ids, SortIds(plan, task.local_sc, *sc.scratch));
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
  stats_[task.stack].Record(task.local_sc, counts,
                            CountCells(sc.table, &BucketCounts::num_ids));
  // Now, while the elements are in a cache. If no limit is exceeded so far,
  // that is up to SparseCores and hosts that are not done.
  if (exceeds_limits_) SortSparseCore(task);
  ReturnSpare(sc, std::move(spare));
  return {};
}

// Until the end, a SparseCore needs only the array that its elements are in.
// The other one serves the next SparseCore, and is in a cache by then: 0.4 ns
// per id.
void LocalConversion::ReturnSpare(SparseCore& sc,
                                  std::unique_ptr<SpareElements> spare) {
  Scratch& scratch = *sc.scratch;
  if (scratch.elements.Take(sc.ids.elements.size()).data() !=
      sc.ids.elements.data()) {
    std::swap(scratch.elements, scratch.sorted_elements);
  }
  sc.ids.spare = {};
  std::swap(scratch.sorted_elements, *spare);
  spare_pool_.Return(std::move(spare));
}

Result<void> LocalConversion::SortIntoBuckets() {
  return ForEachSparseCore(
      stacks_, executor_, [this](const SparseCoreTask& task) -> Result<void> {
        SparseCore& sc = sparse_cores_[task.index];
        if (sc.table.num_buckets > 1) return {};
        auto spare = spare_pool_.Take();
        std::swap(sc.scratch->sorted_elements, *spare);
        sc.ids.spare = sc.scratch->sorted_elements.Take(sc.ids.elements.size());
        SortSparseCore(task);
        ReturnSpare(sc, std::move(spare));
        return {};
      });
}

void LocalConversion::SortSparseCore(const SparseCoreTask& task) {
  const StackPlan& plan = stacks_[task.stack];
  const PartitionLimits limits = LimitsOf(plan);
  SparseCore& sc = sparse_cores_[task.index];
  auto scratch = row_scratch_pool_.Take();
  sc.table = convert::SortIntoBuckets(sc.ids, sc.table, plan.sort_key, limits,
                                      *scratch);
  row_scratch_pool_.Return(std::move(scratch));
  split_bits_ |= SplitBits(sc.table, limits);
}

Result<void> LocalConversion::Fill(const MinibatchSplit& split,
                                   std::span<const CsrBuffers> buffers) {
  auto done = ForEachSparseCore(stacks_, executor_,
                                [this, &split](const SparseCoreTask& task) {
                                  PlanCells(task, split);
                                  return Result<void>();
                                });
  JTE_RETURN_IF_ERROR(done);
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

void LocalConversion::PlanCells(const SparseCoreTask& task,
                                const MinibatchSplit& split) {
  SparseCore& sc = sparse_cores_[task.index];
  sc.minibatches = JoinBuckets(sc.table, split);
  // For a message about limits, so not where all are kept.
  if (!AllKept(sc.minibatches)) {
    sc.report.ids = LargestOf(sc.table, &BucketCounts::num_ids);
    sc.report.unique_ids = LargestOf(sc.table, &BucketCounts::num_unique_ids);
  }
  sc.report.required_cells = CountCells(sc.minibatches, &BucketCounts::num_ids);
  sc.kept_cells = CountCells(sc.minibatches, &BucketCounts::num_kept_ids);
  stats_[task.stack].RecordMinibatches(task.local_sc, sc.report.required_cells);
}

void LocalConversion::FillSparseCore(const SparseCoreTask& task,
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
      sc.ids, plan.sort_key, sc.table, sc.minibatches, split, LimitsOf(plan),
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

Result<std::vector<StackStats>> LocalConversion::TakeStats(
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
  JTE_RETURN_IF_ERROR(errors.Check());
  return all_stats;
}

constexpr int32_t kMaxBatchNumber = (1 << 30) - 1;  // 2 b + 1 fits int32

Result<void> CheckReduction(const Topology& topology, int32_t batch_number,
                            const collective::AllReduce* all_reduce) {
  if (all_reduce == nullptr) {
    if (topology.local_device_count == topology.global_device_count) return {};
    return InvalidArgument(
        "enable_minibatching=True on ", topology.local_device_count, " of ",
        topology.global_device_count,
        " devices needs an all_reduce_interface, by which all hosts agree on "
        "the minibatches. Pass that of get_all_reduce_interface().");
  }
  if (batch_number >= 0 && batch_number <= kMaxBatchNumber) return {};
  return InvalidArgument("batch_number must be in [0, ", kMaxBatchNumber,
                         "], got ", batch_number, ".");
}

// Of a reduction that leaves out what this host has contributed: with fewer
// minibatches than it needs, ids would be lost and buffers overrun.
std::unexpected<Error> LeavesOut(std::string_view method, int32_t sync_key,
                                 uint64_t result, uint64_t value) {
  return FailedPrecondition(
      "all_reduce_interface.", method, "(sync_key=", sync_key, ") returned ",
      result, ", which leaves out what this host has contributed, ", value,
      ". It must return the OR of the values of all hosts.");
}

Result<bool> AnyHost(collective::AllReduce* all_reduce, int32_t batch_number,
                     bool value) {
  if (all_reduce == nullptr) return value;
  const int32_t sync_key = 2 * batch_number;
  JTE_ASSIGN_OR_RETURN(const bool any, all_reduce->AnyOf(sync_key, value));
  if (value && !any) {
    return LeavesOut("any_of", sync_key, any, value);
  }
  return any;
}

Result<uint64_t> OrOfHosts(collective::AllReduce* all_reduce,
                           int32_t batch_number, uint64_t value) {
  if (all_reduce == nullptr) return value;
  const int32_t sync_key = 2 * batch_number + 1;
  JTE_ASSIGN_OR_RETURN(const uint64_t bits,
                       all_reduce->BitwiseOr(sync_key, value));
  if ((bits & value) != value) {
    return LeavesOut("bitwise_or", sync_key, bits, value);
  }
  return bits;
}

// The minibatches of all hosts. `local` is how this host's part went so far;
// its error is the one to report even if the reductions fail too.
Result<MinibatchSplit> AgreeOnSplit(LocalConversion& local_part,
                                    Result<void> local,
                                    collective::AllReduce* all_reduce,
                                    int32_t batch_number) {
  const auto needed =
      AnyHost(all_reduce, batch_number, local && local_part.exceeds_limits());
  MinibatchSplit split;
  Result<void> reduced;
  if (!needed) {
    reduced = std::unexpected(needed.error());
  } else if (*needed) {
    if (local) local = local_part.SortIntoBuckets();
    const auto bits = OrOfHosts(all_reduce, batch_number,
                                local ? local_part.split_bits() : 0);
    if (bits) {
      split = MinibatchSplit(*bits);
    } else {
      reduced = std::unexpected(bits.error());
    }
  }
  JTE_RETURN_IF_ERROR(local);
  JTE_RETURN_IF_ERROR(reduced);
  return split;
}

}  // namespace

Result<Conversion> ConvertInMinibatches(std::span<const StackPlan> stacks,
                                        const ConvertOptions& options,
                                        std::span<const CsrBuffers> buffers,
                                        Executor& executor,
                                        collective::AllReduce* all_reduce) {
  JTE_RETURN_IF_ERROR(CheckReduction(stacks.front().topology,
                                     options.batch_number, all_reduce));
  LocalConversion local_part(stacks, executor);
  JTE_ASSIGN_OR_RETURN(const auto split,
                       AgreeOnSplit(local_part, local_part.Count(), all_reduce,
                                    options.batch_number));
  JTE_RETURN_IF_ERROR(local_part.Fill(split, buffers));
  JTE_ASSIGN_OR_RETURN(auto stats,
                       local_part.TakeStats(options.allow_id_dropping));
  return Conversion{.stats = std::move(stats),
                    .num_minibatches = static_cast<int>(split.size())};
}

}  // namespace jte::convert
