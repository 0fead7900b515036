// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/exchange/buffers_or_nan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/layout/constants.h"

namespace jte::kernels {

namespace {

// `values`, and for those that are out of range the nearest that are not.
std::vector<int32_t> Clamped(std::span<const int32_t> values, int64_t limit) {
  std::vector<int32_t> clamped(values.begin(), values.end());
  for (int32_t& value : clamped) {
    value = std::max(std::min(value, static_cast<int32_t>(limit - 1)), 0);
  }
  return clamped;
}

}  // namespace

BuffersOrNaN::BuffersOrNaN(const CooBuffers& given, const CooGeometry& geometry,
                           Executor& executor)
    : geometry_(geometry), buffers_(given) {
  const auto partitions = ReadPartitions(given, geometry);
  if (partitions && CheckEntries(given, *partitions, geometry, executor)) {
    return;
  }
  geometry_.num_minibatches =
      std::clamp<int64_t>(geometry.num_minibatches, 1, kMaxMinibatches);
  // Where there are no rows or no samples, no cell can stand for anything.
  const bool can_have_entries =
      geometry.rows_per_shard > 0 && geometry.batch_size_per_sc > 0;
  if (!can_have_entries) {
    row_pointers_.assign(given.row_pointers.size(), 0);
    buffers_.row_pointers = row_pointers_;
  } else if (!partitions) {
    // The first partition of a region has all its cells; the others are empty,
    // whatever the number of minibatches.
    const int64_t num_regions =
        geometry.enable_minibatching ? 1 : geometry.num_sc_per_device;
    row_pointers_.assign(
        given.row_pointers.size(),
        static_cast<int32_t>(std::ssize(given.embedding_ids) / num_regions));
    buffers_.row_pointers = row_pointers_;
  }
  embedding_ids_ = Clamped(given.embedding_ids, geometry.rows_per_shard);
  sample_ids_ = Clamped(given.sample_ids, geometry.batch_size_per_sc);
  gains_.assign(given.gains.size(), std::numeric_limits<float>::quiet_NaN());
  buffers_.embedding_ids = embedding_ids_;
  buffers_.sample_ids = sample_ids_;
  buffers_.gains = gains_;
}

}  // namespace jte::kernels
