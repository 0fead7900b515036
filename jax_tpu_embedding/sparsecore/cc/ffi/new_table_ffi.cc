// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Target "jte_new_table_cpu": zeros in huge pages, for a table that is about to
// be initialized. XLA allocates in small pages, and memory can be given huge
// ones at no cost only before it is written; later they cost a copy, for which
// table_memory.h waits until a table is used for the third time.

#include <algorithm>
#include <cstddef>
#include <span>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"
#include "jax_tpu_embedding/sparsecore/cc/base/math.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/handlers.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/run_handler.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

Result<void> NewTable(Executor& executor, const xla::ffi::AnyBuffer& result) {
  const std::span<std::byte> memory(
      static_cast<std::byte*>(result.untyped_data()), result.size_bytes());
  AllowHugePages(memory);
  const size_t num_parts = CeilDiv(memory.size(), kHugePageBytes);
  executor.ParallelFor(static_cast<int64_t>(num_parts), [memory](int64_t k) {
    const size_t begin = static_cast<size_t>(k) * kHugePageBytes;
    std::ranges::fill(
        memory.subspan(begin, std::min(kHugePageBytes, memory.size() - begin)),
        std::byte{0});
  });
  return {};
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JteNewTableCpu, kOnPool<NewTable>,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Ret<xla::ffi::AnyBuffer>());  // the table

}  // namespace jte::ffi
