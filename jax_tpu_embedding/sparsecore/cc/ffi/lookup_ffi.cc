// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_lookup_cpu": the lookup of one stack on one device. The math is
// kernels/lookup.h.

#include <cstdint>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/error_to_ffi.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/thread_pool_executor.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup.h"
#include "xla/ffi/api/ffi.h"

namespace jte {
namespace {

namespace ffi = xla::ffi;

Result<void> CheckedLookup(
    Executor& executor, const IntVector& row_pointers,
    const IntVector& embedding_ids, const IntVector& sample_ids,
    const FloatVector& gains, const IntScalar& num_minibatches,
    const FloatMatrix& table, const FloatMatrix& activations,
    int64_t num_sc_per_device, bool enable_minibatching) {
  const auto buffers =
      ToCooBuffers(row_pointers, embedding_ids, sample_ids, gains);
  if (!buffers) return std::unexpected(buffers.error());
  const auto geometry = MakeGeometry(
      num_sc_per_device, enable_minibatching, *num_minibatches.typed_data(),
      table.dimensions()[0], activations.dimensions()[0]);
  if (!geometry) return std::unexpected(geometry.error());
  const int64_t dim = table.dimensions()[1];
  if (activations.dimensions()[1] != dim) {
    return InvalidArgument("The activations have ", activations.dimensions()[1],
                           " columns, expected the table's ", dim, ".");
  }
  return Lookup(*buffers, *geometry, ToSpan<const float>(table), dim,
                ToSpan<float>(activations), executor);
}

ffi::Error Handler(ffi::ThreadPool pool, IntVector row_pointers,
                   IntVector embedding_ids, IntVector sample_ids,
                   FloatVector gains, IntScalar num_minibatches,
                   FloatMatrix table, ffi::Result<FloatMatrix> activations,
                   int64_t num_sc_per_device, bool enable_minibatching) {
  ThreadPoolExecutor executor(pool);
  return RunHandler(CheckedLookup, executor, row_pointers, embedding_ids,
                    sample_ids, gains, num_minibatches, table, *activations,
                    num_sc_per_device, enable_minibatching);
}

}  // namespace

// The handler's thread takes part in the work, so there is nothing left to wait
// for when it returns, and it returns an error rather than a future.
XLA_FFI_DEFINE_HANDLER_SYMBOL(JteLookupCpu, Handler,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<IntVector>()    // row_pointers
                                  .Arg<IntVector>()    // embedding_ids
                                  .Arg<IntVector>()    // sample_ids
                                  .Arg<FloatVector>()  // gains
                                  .Arg<IntScalar>()    // num_minibatches
                                  .Arg<FloatMatrix>()  // table
                                  .Ret<FloatMatrix>()  // activations
                                  .Attr<int64_t>("num_sc_per_device")
                                  .Attr<bool>("enable_minibatching"));

}  // namespace jte
