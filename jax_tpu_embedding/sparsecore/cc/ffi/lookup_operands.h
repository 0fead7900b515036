// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the lookups from buffers and from ids read besides these.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {

// None, or minimum, maximum and number of buckets.
Result<std::optional<kernels::Quantization>> ReadQuantization(
    std::span<const double> numbers);

// A table that is looked up: rows of values, or of codes if its buffer is
// int32.
struct TableToRead {
  kernels::LookupTable rows;
  std::span<std::byte> memory;
  int64_t num_rows;
};

// InvalidArgument unless its rows have the columns of the activations.
Result<TableToRead> ToTableToRead(const xla::ffi::AnyBuffer& buffer,
                                  const Matrix& activations);

// The tables of all devices; `table` is one of them, `own` what this one has
// published.
Result<std::vector<kernels::LookupTable>> ReadTables(const WordsByDevice& words,
                                                     const TableToRead& table,
                                                     const Published& own);

// Makes the pages of what the lookup reads and writes fit for it.
void PreparePages(const TableToRead& table, const Matrix& activations,
                  Executor& executor);

void FillWithNaN(const Matrix& activations);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_
