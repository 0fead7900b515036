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
  // At least one stack; all have one topology. `buffers`: one for each.
  LocalConversion(std::span<const StackPlan> stacks,
                  std::span<const CsrBuffers> buffers, Executor& executor);
  ~LocalConversion();

  // Extracts, sorts and counts. As mostly one minibatch is enough, it is
  // written at once where that can be done, while its elements are in a cache.
  // Errors: those of ExtractIds.
  Result<void> Count();

  // Whether a partition exceeds a limit.
  bool exceeds_limits() const { return exceeds_limits_; }

  // Only if some host exceeds its limits. Count did it where it knew that.
  Result<void> SortIntoBuckets();

  // The boundaries between minibatches that this host needs.
  uint64_t split_bits() const { return split_bits_; }

  // Writes all of the buffers, or what Count has not.
  Result<void> Fill(const MinibatchSplit& split);

  // The end. Errors: buckets beyond a limit and buffers that are too
  // small, all in one message, unless ids may be dropped.
  Result<std::vector<StackStats>> TakeStats(bool allow_id_dropping);

 private:
  using SpareElements = ScratchArray<uint64_t>;

  struct SparseCore {
    std::unique_ptr<Scratch> scratch;  // of Count, until the end, or null if
                                       // it is filled
    SortedIds ids;
    PartitionTable table;
    PartitionTable minibatches;  // of Fill
    int64_t kept_cells = 0;
    FillReport report;
    // Whether kept_cells is known, within the limits: said to other tasks.
    std::atomic<bool> is_counted = false;
    // With all that it has; then it keeps no elements. If there are minibatches
    // after all, which is rare, they are made again.
    bool is_filled = false;
  };

  Result<void> CountSparseCore(const SparseCoreTask& task);
  Result<void> SortElements(const SparseCoreTask& task, SpareElements& spare);
  void SortSparseCore(const SparseCoreTask& task);
  void ReturnSpare(SparseCore& sc, std::unique_ptr<SpareElements> spare);
  void FillEarly(const SparseCoreTask& task);
  void PlanCells(const SparseCoreTask& task, const MinibatchSplit& split);
  void FillSparseCore(const SparseCoreTask& task, const MinibatchSplit& split);
  void WriteCells(const SparseCoreTask& task, const MinibatchSplit& split,
                  const PartitionTable& minibatches);
  void PadDevice(const SparseCoreTask& task, int64_t num_pointers);

  // The SparseCores of the task's device, which of them is its own, and the
  // buffers of all.
  std::span<SparseCore> OnDevice(const SparseCoreTask& task);
  int64_t NumberOnDevice(const SparseCoreTask& task) const;
  CsrBuffers BuffersOfDevice(const SparseCoreTask& task) const;

  std::span<const StackPlan> stacks_;
  std::span<const CsrBuffers> buffers_;
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
                                 std::span<const CsrBuffers> buffers,
                                 Executor& executor)
    : stacks_(stacks),
      buffers_(buffers),
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
  auto spare = spare_pool_.Take();
  JTE_RETURN_IF_ERROR(SortElements(task, *spare));
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
  sc.kept_cells = CountCells(sc.table, &BucketCounts::num_ids);
  stats_[task.stack].Record(task.local_sc, counts, sc.kept_cells);
  // Now, while the elements are in a cache. If no limit is exceeded so far,
  // that is up to SparseCores and hosts that are not done.
  if (exceeds_limits_) {
    SortSparseCore(task);
  } else {
    sc.is_counted.store(true, std::memory_order_release);
    FillEarly(task);
  }
  ReturnSpare(sc, std::move(spare));
  // The next SparseCore writes to memory that is in a cache.
  if (sc.is_filled) scratch_pool_.Return(std::move(sc.scratch));
  return {};
}

// Takes memory for the elements, and `spare` as half of it.
Result<void> LocalConversion::SortElements(const SparseCoreTask& task,
                                           SpareElements& spare) {
  SparseCore& sc = sparse_cores_[task.index];
  sc.scratch = scratch_pool_.Take();
  std::swap(sc.scratch->sorted_elements, spare);
  JTE_ASSIGN_OR_RETURN(
      sc.ids, SortIds(stacks_[task.stack], task.local_sc, *sc.scratch));
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
        if (sc.is_filled) {
          JTE_RETURN_IF_ERROR(SortElements(task, *spare));
          sc.is_filled = false;
        } else {
          std::swap(sc.scratch->sorted_elements, *spare);
          sc.ids.spare =
              sc.scratch->sorted_elements.Take(sc.ids.elements.size());
        }
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

// If all SparseCores before it were counted, which say where it begins.
void LocalConversion::FillEarly(const SparseCoreTask& task) {
  const auto on_device = OnDevice(task);
  const int64_t s = NumberOnDevice(task);
  SparseCore& sc = on_device[s];
  int64_t end = sc.kept_cells;
  for (const SparseCore& other : on_device.first(s)) {
    if (!other.is_counted.load(std::memory_order_acquire)) return;
    end += other.kept_cells;
  }
  if (end > stacks_[task.stack].coo_cells_per_device) return;
  WriteCells(task, MinibatchSplit(), sc.table);
  sc.is_filled = true;
}

Result<void> LocalConversion::Fill(const MinibatchSplit& split) {
  auto done = ForEachSparseCore(stacks_, executor_,
                                [this, &split](const SparseCoreTask& task) {
                                  PlanCells(task, split);
                                  return Result<void>();
                                });
  JTE_RETURN_IF_ERROR(done);
  return ForEachSparseCore(stacks_, executor_,
                           [this, &split](const SparseCoreTask& task) {
                             FillSparseCore(task, split);
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
                                     const MinibatchSplit& split) {
  SparseCore& sc = sparse_cores_[task.index];
  if (!sc.is_filled) WriteCells(task, split, sc.minibatches);
  const int64_t num_scs = stacks_[task.stack].topology.num_scs();
  PadDevice(task, split.size() * RowPointersPerBlock(num_scs));
}

// SparseCores begin where those before them end, if there is room.
void LocalConversion::WriteCells(const SparseCoreTask& task,
                                 const MinibatchSplit& split,
                                 const PartitionTable& minibatches) {
  const StackPlan& plan = stacks_[task.stack];
  const auto on_device = OnDevice(task);
  const int64_t s = NumberOnDevice(task);
  const CsrBuffers device = BuffersOfDevice(task);
  const int64_t num_cells = plan.coo_cells_per_device;
  int64_t begin = 0;
  for (const SparseCore& other : on_device.first(s)) begin += other.kept_cells;
  SparseCore& sc = on_device[s];
  const int64_t num_pointers =
      split.size() * RowPointersPerBlock(plan.topology.num_scs());
  sc.report.dropped_id_count = FillMinibatches(
      sc.ids, plan.sort_key, sc.table, minibatches, split, LimitsOf(plan),
      device.row_pointers.subspan(s * num_pointers, num_pointers),
      device.FirstCells(std::min(begin + sc.kept_cells, num_cells)),
      std::min(begin, num_cells));
}

// The unused rest of the device, shared out. `num_pointers`: of a SparseCore.
void LocalConversion::PadDevice(const SparseCoreTask& task,
                                int64_t num_pointers) {
  const auto on_device = OnDevice(task);
  const int64_t s = NumberOnDevice(task);
  const CsrBuffers device = BuffersOfDevice(task);
  const int64_t num_scs = std::ssize(on_device);
  const int64_t num_cells = stacks_[task.stack].coo_cells_per_device;
  int64_t used_cells = 0;
  for (const SparseCore& sc : on_device) used_cells += sc.kept_cells;
  const Range padding =
      EvenPart({std::min(used_cells, num_cells), num_cells}, s, num_scs);
  Pad(device, padding.begin, padding.end - padding.begin);
  const Range unused = EvenPart(
      {num_scs * num_pointers, std::ssize(device.row_pointers)}, s, num_scs);
  std::fill(device.row_pointers.begin() + unused.begin,
            device.row_pointers.begin() + unused.end, 0);
}

std::span<LocalConversion::SparseCore> LocalConversion::OnDevice(
    const SparseCoreTask& task) {
  return std::span(sparse_cores_)
      .subspan(task.index - NumberOnDevice(task),
               stacks_[task.stack].topology.num_sc_per_device);
}

int64_t LocalConversion::NumberOnDevice(const SparseCoreTask& task) const {
  return task.local_sc % stacks_[task.stack].topology.num_sc_per_device;
}

CsrBuffers LocalConversion::BuffersOfDevice(const SparseCoreTask& task) const {
  const Topology& topology = stacks_[task.stack].topology;
  return buffers_[task.stack].Part(task.local_sc / topology.num_sc_per_device,
                                   topology.local_device_count);
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
  LocalConversion local_part(stacks, buffers, executor);
  JTE_ASSIGN_OR_RETURN(const auto split,
                       AgreeOnSplit(local_part, local_part.Count(), all_reduce,
                                    options.batch_number));
  JTE_RETURN_IF_ERROR(local_part.Fill(split));
  JTE_ASSIGN_OR_RETURN(auto stats,
                       local_part.TakeStats(options.allow_id_dropping));
  return Conversion{.stats = std::move(stats),
                    .num_minibatches = static_cast<int>(split.size())};
}

}  // namespace jte::convert
