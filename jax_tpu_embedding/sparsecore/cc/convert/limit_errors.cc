// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stages/fill_csr.h"

namespace jte::convert {
namespace {

constexpr std::string_view kOrDrop =
    ", or pass allow_id_dropping=True to drop what is beyond it.\n";

std::string SourceName(const StackPlan& plan, int64_t local_sc) {
  const int64_t num_sc_per_device = plan.topology.num_sc_per_device;
  return StrCat("Stack '", plan.spec.name, "': SparseCore ",
                local_sc % num_sc_per_device, " of local device ",
                local_sc / num_sc_per_device);
}

std::string Text(const PartitionName& name) {
  const std::string partition = StrCat("partition ", name.partition);
  if (name.bucket == PartitionName::kAllBuckets) return partition;
  return StrCat("bucket ", name.bucket, " of ", partition,
                ", which minibatches cannot split");
}

std::string DescribePartition(const StackPlan& plan,
                              std::span<const FillReport> reports,
                              LargestPartition FillReport::* count_of,
                              std::string_view what,
                              std::string_view limit_name, int64_t limit) {
  const auto worst = std::ranges::max_element(
      reports, {}, [count_of](const FillReport& report) {
        return (report.*count_of).count;
      });
  const auto& [count, name] = *worst.*count_of;
  if (count <= limit) return "";
  return StrCat(SourceName(plan, worst - reports.begin()), " has ", count, " ",
                what, " for ", Text(name), ", and ", limit_name, " is ", limit,
                ". Raise it to at least ", count, kOrDrop);
}

std::string DescribePartitions(const StackPlan& plan,
                               std::span<const FillReport> reports) {
  const StackSpec& spec = plan.spec;
  return DescribePartition(plan, reports, &FillReport::ids, "ids",
                           "max_ids_per_partition",
                           spec.max_ids_per_partition) +
         DescribePartition(plan, reports, &FillReport::unique_ids,
                           "distinct ids", "max_unique_ids_per_partition",
                           spec.max_unique_ids_per_partition);
}

std::string DescribeRegions(const StackPlan& plan,
                            std::span<const FillReport> reports) {
  const auto worst =
      std::ranges::max_element(reports, {}, &FillReport::required_cells);
  const int64_t required = worst->required_cells;
  if (required <= plan.coo_cells_per_sc()) return "";
  return StrCat(SourceName(plan, worst - reports.begin()), " needs ", required,
                " cells and has ", plan.coo_cells_per_sc(),
                ", its share of a buffer of ", plan.coo_cells_per_device,
                " cells. Raise suggested_coo_buffer_size_per_device to at "
                "least ",
                required * plan.topology.num_sc_per_device, kOrDrop);
}

std::string DescribeDevices(const StackPlan& plan,
                            std::span<const FillReport> reports) {
  const int64_t num_sc_per_device = plan.topology.num_sc_per_device;
  int64_t most_required = 0;
  int64_t worst = 0;
  for (int64_t d = 0; d < plan.topology.local_device_count; ++d) {
    int64_t required = 0;
    for (const FillReport& report :
         reports.subspan(d * num_sc_per_device, num_sc_per_device)) {
      required += report.required_cells;
    }
    if (required > most_required) {
      most_required = required;
      worst = d;
    }
  }
  if (most_required <= plan.coo_cells_per_device) return "";
  return StrCat("Stack '", plan.spec.name, "': local device ", worst, " needs ",
                most_required, " cells for its minibatches and has ",
                plan.coo_cells_per_device,
                ". Raise suggested_coo_buffer_size_per_device to at least ",
                most_required, kOrDrop);
}

}  // namespace

// A buffer of the theoretical size overflows only with a limit, so it is not
// worth a line of its own.

void LimitErrors::Add(const StackPlan& plan,
                      std::span<const FillReport> reports) {
  const std::string partitions = DescribePartitions(plan, reports);
  lines_ += partitions;
  if (partitions.empty() || plan.spec.suggested_coo_buffer_size_per_device) {
    lines_ += DescribeRegions(plan, reports);
  }
}

void LimitErrors::AddPacked(const StackPlan& plan,
                            std::span<const FillReport> reports) {
  const std::string partitions = DescribePartitions(plan, reports);
  lines_ += partitions;
  if (partitions.empty() || plan.spec.suggested_coo_buffer_size_per_device) {
    lines_ += DescribeDevices(plan, reports);
  }
}

Result<void> LimitErrors::Check() const {
  if (lines_.empty()) return {};
  return InvalidArgument(lines_.substr(0, lines_.size() - 1));
}

}  // namespace jte::convert
