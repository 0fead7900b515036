// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the handlers of lookup and update have in common: the COO operands and
// the shapes that follow from them.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_COO_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_COO_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

using IntVector = xla::ffi::BufferR1<xla::ffi::S32>;
using IntScalar = xla::ffi::BufferR0<xla::ffi::S32>;
using FloatVector = xla::ffi::BufferR1<xla::ffi::F32>;

template <typename T, xla::ffi::DataType dtype, size_t rank>
std::span<T> ToSpan(const xla::ffi::Buffer<dtype, rank>& buffer) {
  return {buffer.typed_data(), buffer.element_count()};
}

inline std::span<const std::byte> BytesOf(const xla::ffi::AnyBuffer& buffer) {
  return {static_cast<const std::byte*>(buffer.untyped_data()),
          buffer.size_bytes()};
}

// Rows of `dim` numbers.
struct Matrix {
  std::span<float> values;
  int64_t num_rows;
  int64_t dim;
};

// InvalidArgument, naming `name`, unless `buffer` is float32 of rank 2, or 1:
// rows of one number.
Result<Matrix> ToMatrix(const xla::ffi::AnyBuffer& buffer,
                        std::string_view name);

// Rows of `dim` values.
struct Table {
  kernels::TableValues values;
  int64_t num_rows;
  int64_t dim;
};

// InvalidArgument unless `buffer` is float32, bfloat16 or float16, of rank 2 or
// 1.
Result<Table> ToTable(const xla::ffi::AnyBuffer& buffer);

// What a conversion gives to lookups and updates.
struct CooOperands {
  IntVector row_pointers;
  IntVector embedding_ids;
  IntVector sample_ids;
  FloatVector gains;
  IntScalar num_minibatches;

  // The buffers as they are; ToCooBuffers checks them.
  kernels::CooBuffers Spans() const {
    return {.row_pointers = ToSpan<const int32_t>(row_pointers),
            .embedding_ids = ToSpan<const int32_t>(embedding_ids),
            .sample_ids = ToSpan<const int32_t>(sample_ids),
            .gains = ToSpan<const float>(gains)};
  }
};
inline constexpr int64_t kNumCooOperands = 5;

// The handler that calls kBody with an Executor on XLA's thread pool and the
// CooOperands first; its binding begins with BindCooOnPool().
template <auto kBody>
inline constexpr auto kCooOnPool =
    [](xla::ffi::ThreadPool pool, const IntVector& row_pointers,
       const IntVector& embedding_ids, const IntVector& sample_ids,
       const FloatVector& gains, const IntScalar& num_minibatches,
       auto... decoded) {
      return kOnPool<kBody>(pool,
                            CooOperands{row_pointers, embedding_ids, sample_ids,
                                        gains, num_minibatches},
                            decoded...);
    };

inline auto BindCooOnPool() {
  return xla::ffi::Ffi::Bind()
      .Ctx<xla::ffi::ThreadPool>()
      .Arg<IntVector>()    // row_pointers
      .Arg<IntVector>()    // embedding_ids
      .Arg<IntVector>()    // sample_ids
      .Arg<FloatVector>()  // gains
      .Arg<IntScalar>();   // num_minibatches
}

// Those from number `first` on; InvalidArgument if one is no such buffer.
Result<CooOperands> ReadCooOperands(xla::ffi::RemainingArgs args,
                                    int64_t first);

// The buffers, once their three cell arrays are known to have one size; the
// message of the conversion if they are those of one that failed.
Result<kernels::CooBuffers> ToCooBuffers(const CooOperands& coo);

// The same, once partitions and entries are known to be valid.
Result<kernels::CooBuffers> ReadValidBuffers(
    Executor& executor, const CooOperands& coo,
    const kernels::CooGeometry& geometry);

// `num_table_rows` and `batch_size` of the device, divided among its cores;
// InvalidArgument unless both can be, and numbers of rows and samples are
// int32.
Result<kernels::CooGeometry> MakeGeometry(int64_t num_sc_per_device,
                                          bool enable_minibatching,
                                          int32_t num_minibatches,
                                          int64_t num_table_rows,
                                          int64_t batch_size);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_COO_OPERANDS_H_
