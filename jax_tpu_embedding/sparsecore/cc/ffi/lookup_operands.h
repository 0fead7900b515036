// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// What the lookups from buffers and from ids read besides these.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_

#include <optional>
#include <span>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/base/executor.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/coo_operands.h"
#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/lookup/lookup.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"

namespace jte::ffi {

// None, or minimum, maximum and number of buckets.
Result<std::optional<kernels::Quantization>> ReadQuantization(
    std::span<const double> numbers);

kernels::ConstTableValues ReadOnly(const kernels::TableValues& values);

// The tables of all devices; `table` is one of them, `own` what this one has
// published.
Result<std::vector<kernels::ConstTableValues>> ReadTables(
    const WordsByDevice& words, const Table& table, const Published& own);

// Makes the pages of what the lookup reads and writes fit for it.
void PreparePages(const Table& table, const Matrix& activations,
                  Executor& executor);

void FillWithNaN(const Matrix& activations);

}  // namespace jte::ffi

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_FFI_LOOKUP_OPERANDS_H_
