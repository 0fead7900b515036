// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"

#include <cstdint>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/partitions.h"
#include "xla/ffi/api/ffi.h"

namespace jte {
namespace {

Result<void> CheckDivisible(int64_t rows, int64_t num_sc_per_device,
                            std::string_view name) {
  if (rows % num_sc_per_device == 0) return {};
  return InvalidArgument(name, " has ", rows,
                         " rows, expected a multiple of the ",
                         num_sc_per_device, " SparseCores of the device.");
}

}  // namespace

Result<Matrix> ToMatrix(const xla::ffi::AnyBuffer& buffer,
                        std::string_view name) {
  const auto dimensions = buffer.dimensions();
  if (buffer.element_type() != xla::ffi::F32 || dimensions.size() != 2) {
    return InvalidArgument(name, " has element type ", buffer.element_type(),
                           " and rank ", dimensions.size(),
                           ", expected float32 and rank 2.");
  }
  return Matrix{
      .values = {buffer.typed_data<float>(), buffer.element_count()},
      .num_rows = dimensions[0],
      .dim = dimensions[1],
  };
}

Result<CooBuffers> ToCooBuffers(const IntVector& row_pointers,
                                const IntVector& embedding_ids,
                                const IntVector& sample_ids,
                                const FloatVector& gains) {
  const auto num_cells = embedding_ids.element_count();
  if (sample_ids.element_count() != num_cells ||
      gains.element_count() != num_cells) {
    return InvalidArgument("embedding_ids, sample_ids and gains have ",
                           num_cells, ", ", sample_ids.element_count(), " and ",
                           gains.element_count(),
                           " cells, expected equal numbers.");
  }
  return CooBuffers{
      .row_pointers = ToSpan<const int32_t>(row_pointers),
      .embedding_ids = ToSpan<const int32_t>(embedding_ids),
      .sample_ids = ToSpan<const int32_t>(sample_ids),
      .gains = ToSpan<const float>(gains),
  };
}

Result<CooGeometry> MakeGeometry(int64_t num_sc_per_device,
                                 bool enable_minibatching,
                                 int32_t num_minibatches,
                                 int64_t num_table_rows, int64_t batch_size) {
  if (num_sc_per_device < 1) {
    return InvalidArgument("num_sc_per_device must be positive, got ",
                           num_sc_per_device, ".");
  }
  for (auto checked :
       {CheckDivisible(num_table_rows, num_sc_per_device, "The table"),
        CheckDivisible(batch_size, num_sc_per_device, "The batch")}) {
    if (!checked) return std::unexpected(checked.error());
  }
  return CooGeometry{
      .num_sc_per_device = num_sc_per_device,
      .rows_per_shard = num_table_rows / num_sc_per_device,
      .batch_size_per_sc = batch_size / num_sc_per_device,
      .enable_minibatching = enable_minibatching,
      // The other layout has no minibatches, whatever the operand says.
      .num_minibatches = enable_minibatching ? num_minibatches : 1,
  };
}

}  // namespace jte
