// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The values of a table, of any of the types that it may have.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_VALUE_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_VALUE_H_

#include <span>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/base/float16.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/code_words.h"

namespace jte::kernels {

// By row.
using TableValues =
    std::variant<std::span<float>, std::span<Bfloat16>, std::span<Float16>>;
using ConstTableValues =
    std::variant<std::span<const float>, std::span<const Bfloat16>,
                 std::span<const Float16>>;

// What a lookup reads: such values, or rows of codes.
using LookupTable =
    std::variant<std::span<const float>, std::span<const Bfloat16>,
                 std::span<const Float16>, std::span<const CodeWord>>;

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_TABLE_TABLE_VALUE_H_
