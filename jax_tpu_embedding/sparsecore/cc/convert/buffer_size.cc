// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/convert/buffer_size.h"

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/csr_layout.h"

namespace jte {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Bounds num_scs, and num_scs * num_sc_per_device, so that no size below
// overflows int64 and row pointers of a device, which are at most 64 times
// the latter, stay below 2^31.
constexpr int64_t kMaxPairsPerDevice = int64_t{1} << 24;

Result<void> CheckLimit(const StackSpec& spec, std::string_view name,
                        int64_t limit) {
  if (limit > 0 && limit <= kMaxInt32) return {};
  return InvalidArgument("Stack '", spec.name, "': ", name, " must be in [1, ",
                         kMaxInt32, "], got ", limit, ".");
}

}  // namespace

Result<void> CheckTopology(const Topology& topology) {
  for (const auto& [name, count] :
       {std::pair<std::string_view, int64_t>{"local_device_count",
                                             topology.local_device_count},
        {"global_device_count", topology.global_device_count},
        {"num_sc_per_device", topology.num_sc_per_device}}) {
    if (count <= 0 || count > kMaxPairsPerDevice) {
      return InvalidArgument(name, " must be greater than 0 and at most ",
                             kMaxPairsPerDevice, ", got ", count, ".");
    }
  }
  if (topology.global_device_count < topology.local_device_count) {
    return InvalidArgument(
        "global_device_count must be greater than or equal to "
        "local_device_count, got ",
        topology.global_device_count, " < ", topology.local_device_count, ".");
  }
  if (topology.num_scs() > kMaxPairsPerDevice / topology.num_sc_per_device) {
    return InvalidArgument(
        "global_device_count=", topology.global_device_count,
        " with num_sc_per_device=", topology.num_sc_per_device,
        " has more than ", kMaxPairsPerDevice,
        " partitions per device. Use fewer SparseCores.");
  }
  return {};
}

Result<int64_t> CooCellsPerDevice(const StackSpec& spec,
                                  const Topology& topology,
                                  bool enable_minibatching) {
  for (const auto& [name, limit] :
       {std::pair<std::string_view, int64_t>{"max_ids_per_partition",
                                             spec.max_ids_per_partition},
        {"max_unique_ids_per_partition", spec.max_unique_ids_per_partition}}) {
    if (auto checked = CheckLimit(spec, name, limit); !checked) {
      return std::unexpected(checked.error());
    }
  }
  const int64_t max_cells = MaxCooCellsPerDevice(spec.max_ids_per_partition,
                                                 topology, enable_minibatching);
  int64_t cells = max_cells;
  if (spec.suggested_coo_buffer_size_per_device) {
    const int64_t suggestion = *spec.suggested_coo_buffer_size_per_device;
    if (auto checked = CheckLimit(spec, "suggested_coo_buffer_size_per_device",
                                  suggestion);
        !checked) {
      return std::unexpected(checked.error());
    }
    cells = RoundUp(suggestion, kAlignment * topology.num_sc_per_device);
    if (cells > max_cells) {
      return InvalidArgument(
          "Stack '", spec.name,
          "': suggested_coo_buffer_size_per_device=", suggestion,
          ", rounded up to ", cells, " (a multiple of ", kAlignment,
          " * num_sc_per_device), is above ", max_cells,
          ", the most that max_ids_per_partition=", spec.max_ids_per_partition,
          " can fill. Lower it, or raise max_ids_per_partition.");
    }
  }
  if (cells >= kMaxInt32) {
    return InvalidArgument(
        "Stack '", spec.name, "': the COO buffer of a device would have ",
        cells, " cells, and must have fewer than ", kMaxInt32,
        ". Lower max_ids_per_partition=", spec.max_ids_per_partition,
        ", or set suggested_coo_buffer_size_per_device.");
  }
  return cells;
}

}  // namespace jte
