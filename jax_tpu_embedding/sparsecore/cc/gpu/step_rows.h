// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// The update: sum the gradient of each row that the batch names, step the
// optimizer once, write the row back in place.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_STEP_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_STEP_ROWS_H_

#include <cstdint>
#include <string_view>

#include "jax_tpu_embedding/sparsecore/cc/gpu/row_terms.h"
#include "jax_tpu_embedding/sparsecore/cc/gpu/simt.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/update_rules.h"

namespace jte::gpu {

// A number that is known when the program is compiled, or one in the GPU's
// memory.
struct Number {
  const void* at = nullptr;  // a float, or a bool
  bool is_bool = false;
  float value = 0.0f;  // if `at` is null

  JTE_DEVICE float Read() const {
    if (at == nullptr) return value;
    if (is_bool) return *static_cast<const bool*>(at) ? 1.0f : 0.0f;
    return *static_cast<const float*>(at);
  }
};

// kernels/update/row_options.h says what each does.
struct RowOptions {
  bool skip_non_finite_gradients;
  bool has_max_gradient_norm;
  bool has_l2_weight_decay;
  bool has_decoupled_weight_decay;
  bool has_limits;
  Number max_gradient_norm;
  Number l2_weight_decay;
  Number decoupled_weight_decay;
  float min_value;
  float max_value;
};

// kernels/table/stochastic_rounding.h says what the numbers are.
struct Rounding {
  const uint32_t* seed_and_first_shard;  // null: to nearest
  int64_t num_shards;
  int64_t rows_per_shard;
};

constexpr int kMaxHyperparameters = 8;

struct Optimizer {
  Number hyperparameters[kMaxHyperparameters];
  RowOptions options;
  Rounding rounding;
};

enum class TableType { kFloat, kBfloat16, kFloat16 };

struct Tables {
  void* table;  // [rows, dim]
  TableType type;
  float* slots[kernels::kMaxSlots];  // [rows, dim], or [rows, 1]
};

// block_sums: f32[MaxRowBlocks, dim], overwritten. Returns null, or the message
// of an error: also if there is no rule of that name.
const char* StepRows(Stream stream, std::string_view rule,
                     const RowTerms& terms, int64_t max_row_blocks,
                     float* block_sums, const Optimizer& optimizer,
                     const Tables& tables);

}  // namespace jte::gpu

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_GPU_STEP_ROWS_H_
