// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/limit_errors.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/fill_csr.h"
#include "jax_tpu_embedding/sparsecore/cc/convert/stack_plan.h"

namespace jte {
namespace {

constexpr std::string_view kOrDrop =
    ", or pass allow_id_dropping=True to drop what is beyond it.\n";

std::string SourceName(const StackPlan& plan, int64_t local_sc) {
  const int64_t num_sc_per_device = plan.topology.num_sc_per_device;
  return StrCat("Stack '", plan.spec.name, "': SparseCore ",
                local_sc % num_sc_per_device, " of local device ",
                local_sc / num_sc_per_device);
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
  const auto& [count, partition] = *worst.*count_of;
  if (count <= limit) return "";
  return StrCat(SourceName(plan, worst - reports.begin()), " has ", count, " ",
                what, " for partition ", partition, ", and ", limit_name,
                " is ", limit, ". Raise it to at least ", count, kOrDrop);
}

std::string DescribeBuffer(const StackPlan& plan,
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

}  // namespace

std::string DescribeExcess(const StackPlan& plan,
                           std::span<const FillReport> reports) {
  const StackSpec& spec = plan.spec;
  std::string excess =
      DescribePartition(plan, reports, &FillReport::ids, "ids",
                        "max_ids_per_partition", spec.max_ids_per_partition) +
      DescribePartition(plan, reports, &FillReport::unique_ids, "distinct ids",
                        "max_unique_ids_per_partition",
                        spec.max_unique_ids_per_partition);
  // A buffer of the theoretical size overflows only with a limit.
  if (excess.empty() || spec.suggested_coo_buffer_size_per_device) {
    excess += DescribeBuffer(plan, reports);
  }
  return excess;
}

}  // namespace jte
