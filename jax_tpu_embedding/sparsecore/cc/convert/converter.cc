// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/converter.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/extract.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/radix_sort.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/scratch.h"

namespace jte {
namespace {

int64_t NumLocalScs(const Topology& topology) {
  return topology.local_device_count * topology.num_sc_per_device;
}

// The i-th of n equal parts.
template <typename T>
std::span<T> Part(std::span<T> all, int64_t i, int64_t n) {
  const int64_t size = std::ssize(all) / n;
  return all.subspan(i * size, size);
}

CsrBuffers RegionOf(const CsrBuffers& buffers, int64_t local_sc, int64_t n) {
  return {.row_pointers = Part(buffers.row_pointers, local_sc, n),
          .embedding_ids = Part(buffers.embedding_ids, local_sc, n),
          .sample_ids = Part(buffers.sample_ids, local_sc, n),
          .gains = Part(buffers.gains, local_sc, n)};
}

// Converts what one SparseCore gets of one stack.
Result<FillReport> ConvertSparseCore(const StackPlan& plan, int64_t local_sc,
                                     const CsrBuffers& buffers,
                                     StackStats& stats, Scratch& scratch) {
  const auto extracted = ExtractIds(plan, local_sc, scratch);
  if (!extracted) return std::unexpected(extracted.error());

  const std::span<const uint64_t> sorted =
      SortElements(extracted->elements,
                   scratch.sorted_elements.Take(extracted->elements.size()),
                   plan.sort_key.num_bits());

  const Topology& topology = plan.topology;
  const int64_t device = local_sc / topology.num_sc_per_device;
  const std::span<int32_t> max_ids = stats.max_ids_per_partition;
  const std::span<int32_t> max_unique_ids = stats.max_unique_ids_per_partition;
  const FillReport report =
      FillCsr(sorted, plan.sort_key, extracted->gains,
              {.num_scs = static_cast<uint32_t>(topology.num_scs()),
               .max_ids = plan.spec.max_ids_per_partition,
               .max_unique_ids = plan.spec.max_unique_ids_per_partition},
              RegionOf(buffers, local_sc, NumLocalScs(topology)),
              PartitionMaxima(
                  Part(max_ids, device, topology.local_device_count),
                  Part(max_unique_ids, device, topology.local_device_count)));
  stats.required_buffer_size_per_sc[local_sc] =
      static_cast<int32_t>(report.required_cells);
  return report;
}

// A task may not throw, and memory is the one thing that it can run out of.
Result<FillReport> ConvertWithScratch(const StackPlan& plan, int64_t local_sc,
                                      const CsrBuffers& buffers,
                                      StackStats& stats, ScratchPool& pool) {
  try {
    std::unique_ptr<Scratch> scratch = pool.Take();
    auto report = ConvertSparseCore(plan, local_sc, buffers, stats, *scratch);
    pool.Return(std::move(scratch));
    return report;
  } catch (const std::bad_alloc&) {
    return FailedPrecondition("Stack '", plan.spec.name,
                              "': out of memory for converting its ids. Use "
                              "smaller batches.");
  }
}

}  // namespace

Result<std::vector<StackPlan>> PlanConversion(
    std::vector<StackedFeature> features, const ConvertOptions& options) {
  if (auto checked = CheckTopology(options.topology); !checked) {
    return std::unexpected(checked.error());
  }
  if (features.empty()) {
    return InvalidArgument(
        "input_batches cannot be empty: pass at least one feature.");
  }
  if (options.enable_minibatching) {
    return Unimplemented(
        "enable_minibatching=True is not implemented yet. Raise "
        "max_ids_per_partition and max_unique_ids_per_partition instead.");
  }

  std::unordered_map<std::string, size_t> stack_of_name;
  std::vector<std::vector<StackedFeature>> stacks;
  for (StackedFeature& feature : features) {
    const auto [found, is_new] =
        stack_of_name.try_emplace(feature.stack.name, stacks.size());
    if (is_new) stacks.emplace_back();
    stacks[found->second].push_back(std::move(feature));
  }

  std::vector<StackPlan> plans;
  for (std::vector<StackedFeature>& stack : stacks) {
    const StackSpec spec =
        std::ranges::min_element(stack, {}, [](const StackedFeature& stacked) {
          return stacked.feature.transform.row_offset;
        })->stack;
    const auto cells =
        CooCellsPerDevice(spec, options.topology, options.enable_minibatching);
    if (!cells) return std::unexpected(cells.error());
    std::vector<FeatureInput> inputs;
    for (StackedFeature& stacked : stack) {
      inputs.push_back(std::move(stacked.feature));
    }
    auto plan = PlanStack(spec, *cells, std::move(inputs), options.topology);
    if (!plan) return std::unexpected(plan.error());
    plans.push_back(*std::move(plan));
  }
  return plans;
}

Result<std::vector<StackStats>> Convert(std::span<const StackPlan> stacks,
                                        bool allow_id_dropping,
                                        std::span<const CsrBuffers> buffers,
                                        Executor& executor) {
  std::vector<StackStats> stats;
  for (const StackPlan& plan : stacks) stats.emplace_back(plan.topology);
  if (stacks.empty()) return stats;

  // All stacks of a call have one topology.
  const int64_t num_local_scs = NumLocalScs(stacks.front().topology);
  std::vector<FillReport> reports(stacks.size() * num_local_scs);
  std::vector<std::optional<Error>> errors(reports.size());
  ScratchPool scratch_pool;
  executor.ParallelFor(
      std::ssize(reports), [stacks, buffers, num_local_scs, &stats, &reports,
                            &errors, &scratch_pool](int64_t task) {
        const int64_t stack = task / num_local_scs;
        const auto report =
            ConvertWithScratch(stacks[stack], task % num_local_scs,
                               buffers[stack], stats[stack], scratch_pool);
        if (report) {
          reports[task] = *report;
        } else {
          errors[task] = report.error();
        }
      });
  for (std::optional<Error>& error : errors) {
    if (error) return std::unexpected(*std::move(error));
  }

  std::string excess;
  for (size_t i = 0; i < stacks.size(); ++i) {
    const auto stack_reports =
        std::span(reports).subspan(i * num_local_scs, num_local_scs);
    for (const FillReport& report : stack_reports) {
      stats[i].dropped_id_count += report.dropped_id_count;
    }
    if (!allow_id_dropping) excess += DescribeExcess(stacks[i], stack_reports);
  }
  if (!excess.empty()) {
    excess.pop_back();  // the last line's end
    return InvalidArgument(excess);
  }
  return stats;
}

int64_t ConversionWork(std::span<const StackPlan> stacks) {
  int64_t work = 0;
  for (const StackPlan& plan : stacks) {
    work += plan.num_ids() +
            plan.topology.local_device_count * plan.coo_cells_per_device;
  }
  return work;
}

}  // namespace jte
