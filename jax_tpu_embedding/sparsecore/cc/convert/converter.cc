// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/populate_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/conversion.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/minibatch/minibatch_converter.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stats.h"

namespace jte::convert {
namespace {

// Converts what one SparseCore gets of one stack.
Result<FillReport> ConvertSparseCore(const StackPlan& plan, int64_t local_sc,
                                     const CsrBuffers& region,
                                     SharedStats& stats, Scratch& scratch) {
  JTE_ASSIGN_OR_RETURN(const auto ids, SortIds(plan, local_sc, scratch));
  const PartitionLimits limits = LimitsOf(plan);
  const PartitionCounts counts = {
      .ids = scratch.num_ids.Take(limits.num_scs),
      .unique_ids = scratch.num_unique_ids.Take(limits.num_scs)};
  const FillReport report =
      FillCsr(ids.elements, plan.sort_key, ids.gains, limits, region, counts);
  stats.Record(local_sc, counts, report.required_cells);
  stats.RecordDropped(report.dropped_id_count + ids.dropped_id_count);
  return report;
}

Result<Conversion> ConvertInOnePass(std::span<const StackPlan> stacks,
                                    const ConvertOptions& options,
                                    std::span<const CsrBuffers> buffers,
                                    Executor& executor) {
  std::deque<SharedStats> stats;
  for (const StackPlan& plan : stacks) stats.emplace_back(plan.topology);
  const int64_t num_local_scs = NumLocalScs(stacks.front().topology);
  std::vector<FillReport> reports(stacks.size() * num_local_scs);
  ScratchPool<Scratch> pool;
  const auto done = ForEachSparseCore(
      stacks, executor,
      [stacks, buffers, num_local_scs, &stats, &reports,
       &pool](const SparseCoreTask& task) -> Result<void> {
        auto scratch = pool.Take();
        auto report = ConvertSparseCore(
            stacks[task.stack], task.local_sc,
            buffers[task.stack].Part(task.local_sc, num_local_scs),
            stats[task.stack], *scratch);
        pool.Return(std::move(scratch));
        JTE_ASSIGN_OR_RETURN(reports[task.index], std::move(report));
        return {};
      });
  JTE_RETURN_IF_ERROR(done);

  LimitErrors errors;
  Conversion conversion;
  conversion.stats.reserve(stacks.size());
  for (size_t i = 0; i < stacks.size(); ++i) {
    if (!options.allow_id_dropping) {
      errors.Add(stacks[i],
                 std::span(reports).subspan(i * num_local_scs, num_local_scs));
    }
    conversion.stats.push_back(stats[i].Take());
  }
  JTE_RETURN_IF_ERROR(errors.Check());
  return conversion;
}

std::vector<std::span<std::byte>> MemoryOf(
    std::span<const CsrBuffers> buffers) {
  std::vector<std::span<std::byte>> memory;
  for (const CsrBuffers& stack : buffers) {
    for (const auto bytes : {std::as_writable_bytes(stack.row_pointers),
                             std::as_writable_bytes(stack.embedding_ids),
                             std::as_writable_bytes(stack.sample_ids),
                             std::as_writable_bytes(stack.gains)}) {
      memory.push_back(bytes);
    }
  }
  return memory;
}

}  // namespace

Result<std::vector<StackPlan>> PlanConversion(
    std::vector<StackedFeature> features, const ConvertOptions& options) {
  JTE_RETURN_IF_ERROR(CheckTopology(options.topology));
  if (features.empty()) {
    return InvalidArgument(
        "input_batches cannot be empty: pass at least one feature.");
  }
  struct Stack {
    const StackSpec* spec;  // of the feature with the smallest row offset
    int64_t row_offset;
    std::vector<FeatureInput> inputs;
  };
  // Keys are views of specs, which stay where they are.
  std::unordered_map<std::string_view, size_t> stack_of_name;
  std::vector<Stack> stacks;
  for (StackedFeature& feature : features) {
    const auto [found, is_new] =
        stack_of_name.try_emplace(feature.stack.name, stacks.size());
    const int64_t row_offset = feature.feature.transform.row_offset;
    if (is_new) stacks.push_back({&feature.stack, row_offset, {}});
    Stack& stack = stacks[found->second];
    if (row_offset < stack.row_offset) {
      stack.spec = &feature.stack;
      stack.row_offset = row_offset;
    }
    stack.inputs.push_back(std::move(feature.feature));
  }

  std::vector<StackPlan> plans;
  plans.reserve(stacks.size());
  for (Stack& stack : stacks) {
    JTE_ASSIGN_OR_RETURN(const auto cells,
                         CooCellsPerDevice(*stack.spec, options.topology,
                                           options.enable_minibatching));
    JTE_ASSIGN_OR_RETURN(
        auto plan,
        PlanStack(*stack.spec, cells, std::move(stack.inputs), options.topology,
                  options.feature_stacking_strategy));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Result<Conversion> Convert(std::span<const StackPlan> stacks,
                           const ConvertOptions& options,
                           std::span<const CsrBuffers> buffers,
                           Executor& executor,
                           collective::AllReduce* all_reduce) {
  if (stacks.empty()) return Conversion();
  PopulatePages(MemoryOf(buffers), executor);
  if (!options.enable_minibatching) {
    return ConvertInOnePass(stacks, options, buffers, executor);
  }
  return ConvertInMinibatches(stacks, options, buffers, executor, all_reduce);
}

int64_t ConversionWork(std::span<const StackPlan> stacks) {
  // An id is extracted, sorted and written; most cells are only written.
  constexpr int64_t kWorkPerId = 6;
  int64_t work = 0;
  for (const StackPlan& plan : stacks) {
    work += kWorkPerId * plan.num_ids() +
            plan.topology.local_device_count * plan.coo_cells_per_device;
  }
  return work;
}

}  // namespace jte::convert
