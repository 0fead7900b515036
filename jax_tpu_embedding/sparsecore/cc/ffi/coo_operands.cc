// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"

#include <cstdint>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/failed_buffers.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

// Kernels number rows and samples in int32.
constexpr int64_t kMaxRows = int64_t{1} << 31;

Result<void> CheckRows(int64_t rows, int64_t num_sc_per_device,
                       std::string_view name) {
  if (rows < 0 || rows > kMaxRows) {
    return InvalidArgument(name, " has ", rows,
                           " rows on the device, expected at most 2^31. Use "
                           "more devices.");
  }
  if (rows % num_sc_per_device == 0) return {};
  return InvalidArgument(name, " has ", rows,
                         " rows, expected a multiple of the ",
                         num_sc_per_device, " SparseCores of the device.");
}

struct Shape {
  int64_t num_rows;
  int64_t dim;
};

Result<Shape> RowsOf(const xla::ffi::AnyBuffer& buffer, std::string_view name) {
  const auto dimensions = buffer.dimensions();
  if (dimensions.size() != 1 && dimensions.size() != 2) {
    return InvalidArgument(name, " has rank ", dimensions.size(),
                           ", expected 2, or 1 for rows of one number.");
  }
  return Shape{.num_rows = dimensions[0],
               .dim = dimensions.size() == 2 ? dimensions[1] : 1};
}

template <typename T>
std::span<T> ValuesOf(const xla::ffi::AnyBuffer& buffer) {
  return {static_cast<T*>(buffer.untyped_data()), buffer.element_count()};
}

}  // namespace

Result<Matrix> ToMatrix(const xla::ffi::AnyBuffer& buffer,
                        std::string_view name) {
  if (buffer.element_type() != xla::ffi::F32) {
    return InvalidArgument(name, " has element type ", buffer.element_type(),
                           ", expected float32.");
  }
  JTE_ASSIGN_OR_RETURN(const auto shape, RowsOf(buffer, name));
  return Matrix{.values = ValuesOf<float>(buffer),
                .num_rows = shape.num_rows,
                .dim = shape.dim};
}

Result<Table> ToTable(const xla::ffi::AnyBuffer& buffer) {
  JTE_ASSIGN_OR_RETURN(const auto shape, RowsOf(buffer, "The table"));
  Table table{.values = {}, .num_rows = shape.num_rows, .dim = shape.dim};
  switch (buffer.element_type()) {
    case xla::ffi::F32:
      table.values = ValuesOf<float>(buffer);
      return table;
    case xla::ffi::BF16:
      table.values = ValuesOf<Bfloat16>(buffer);
      return table;
    case xla::ffi::F16:
      table.values = ValuesOf<Float16>(buffer);
      return table;
    default:
      return InvalidArgument("The table has element type ",
                             buffer.element_type(),
                             ", expected float32, bfloat16 or float16.");
  }
}

Result<CooOperands> ReadCooOperands(xla::ffi::RemainingArgs args,
                                    int64_t first) {
  const auto row_pointers = args.get<IntVector>(first);
  const auto embedding_ids = args.get<IntVector>(first + 1);
  const auto sample_ids = args.get<IntVector>(first + 2);
  const auto gains = args.get<FloatVector>(first + 3);
  const auto num_minibatches = args.get<IntScalar>(first + 4);
  if (row_pointers.has_error() || embedding_ids.has_error() ||
      sample_ids.has_error() || gains.has_error() ||
      num_minibatches.has_error()) {
    return InvalidArgument(
        "Operands ", first, " to ", first + kNumCooOperands - 1,
        " must be row pointers, ids and samples, int32 of rank 1, gains, "
        "float32 of rank 1, and the number of minibatches, int32 of rank 0.");
  }
  return CooOperands{.row_pointers = *row_pointers,
                     .embedding_ids = *embedding_ids,
                     .sample_ids = *sample_ids,
                     .gains = *gains,
                     .num_minibatches = *num_minibatches};
}

Result<kernels::CooBuffers> ToCooBuffers(const CooOperands& coo) {
  const kernels::CooBuffers buffers = coo.Spans();
  const auto num_cells = buffers.embedding_ids.size();
  if (buffers.sample_ids.size() != num_cells ||
      buffers.gains.size() != num_cells) {
    return InvalidArgument("embedding_ids, sample_ids and gains have ",
                           num_cells, ", ", buffers.sample_ids.size(), " and ",
                           buffers.gains.size(),
                           " cells, expected equal numbers.");
  }
  if (const auto failure = ReadFailure(buffers)) {
    return InvalidArgument(*failure);
  }
  return buffers;
}

Result<kernels::CooBuffers> ReadValidBuffers(
    Executor& executor, const CooOperands& coo,
    const kernels::CooGeometry& geometry) {
  JTE_ASSIGN_OR_RETURN(const auto buffers, ToCooBuffers(coo));
  JTE_ASSIGN_OR_RETURN(const auto partitions,
                       kernels::ReadPartitions(buffers, geometry));
  JTE_RETURN_IF_ERROR(
      kernels::CheckEntries(buffers, partitions, geometry, executor));
  return buffers;
}

Result<kernels::CooGeometry> MakeGeometry(int64_t num_sc_per_device,
                                          bool enable_minibatching,
                                          int32_t num_minibatches,
                                          int64_t num_table_rows,
                                          int64_t batch_size) {
  if (num_sc_per_device < 1) {
    return InvalidArgument("num_sc_per_device must be positive, got ",
                           num_sc_per_device, ".");
  }
  for (auto checked :
       {CheckRows(num_table_rows, num_sc_per_device, "The table"),
        CheckRows(batch_size, num_sc_per_device, "The batch")}) {
    JTE_RETURN_IF_ERROR(checked);
  }
  return kernels::CooGeometry{
      .num_sc_per_device = num_sc_per_device,
      .rows_per_shard = num_table_rows / num_sc_per_device,
      .batch_size_per_sc = batch_size / num_sc_per_device,
      .enable_minibatching = enable_minibatching,
      // The other layout has no minibatches, whatever the operand says.
      .num_minibatches = enable_minibatching ? num_minibatches : 1,
  };
}

}  // namespace jte::ffi
