// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_random_bits_cpu": the bits that jax.random draws for rows of a
// table that is being initialized.

#include <cstddef>
#include <cstdint>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/random_bits.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

namespace xffi = ::xla::ffi;

using Words = xffi::BufferR1<xffi::U32>;

Result<void> RandomBits(Executor& executor, const Words& key, const Words& rows,
                        const xffi::BufferR0<xffi::U32>& width,
                        const xffi::BufferR2<xffi::U32>& bits) {
  if (key.element_count() != 2) {
    return InvalidArgument("The key has ", key.element_count(),
                           " words, expected 2.");
  }
  if (bits.dimensions()[0] != rows.dimensions()[0]) {
    return InvalidArgument("The bits have ", bits.dimensions()[0],
                           " rows, expected the ", rows.dimensions()[0],
                           " that are named.");
  }
  kernels::DrawRandomBits(executor, {key.typed_data()[0], key.typed_data()[1]},
                          {rows.typed_data(), rows.element_count()},
                          width.typed_data()[0],
                          {bits.typed_data(), bits.element_count()});
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JteRandomBitsCpu, kOnPool<RandomBits>,
    xffi::Ffi::Bind()
        .Ctx<xffi::ThreadPool>()
        .Arg<Words>()                        // key
        .Arg<Words>()                        // numbers of rows
        .Arg<xffi::BufferR0<xffi::U32>>()    // columns of the table
        .Ret<xffi::BufferR2<xffi::U32>>());  // bits

}  // namespace jte::ffi
