// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Everything that an update does to a row once its gradient is known.
//
//   RowStepper stepper(update, dim, /*max_rows=*/16);
//   stepper.rows()[0] = 7;  // and its gradient: stepper.gradients()[0, dim)
//   stepper.Add(/*num_rows=*/1);
//   stepper.Flush();
//
// Threading: a stepper belongs to one thread; no two may step one row.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ROWS_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ROWS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_value.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rule.h"

namespace jte::kernels {

// What is stepped, and how. Views must outlive the steppers.
struct RowUpdate {
  TableValues table;
  std::array<float*, kMaxSlots> slots;
  int num_slots;
  bool has_row_slots;  // slots have one number per row
  StepFunction step;
  const float* hyperparameters;
  RowOptions options;
  std::optional<StochasticRounding> rounding;
};

class RowStepper {
 public:
  RowStepper(const RowUpdate& update, int64_t dim, int64_t max_rows);

  // To be filled before each Add: rows of the table that were not added before,
  // and their gradients, [max_rows, dim].
  int32_t* rows() { return next_.rows.data(); }
  float* gradients() { return next_.gradients.data(); }

  // Asks for the memory of these rows, and steps those added before.
  void Add(int64_t num_rows);

  // Steps the rows that were added last.
  void Flush() { Add(0); }

 private:
  struct Rows {
    int64_t size = 0;
    std::vector<int32_t> rows;
    std::vector<float> gradients;
  };

  void StepCurrent();

  // Steps `block`, whose weights are floats.
  void StepBlock(const RowBlock& block);

  const RowUpdate& update_;
  const int64_t dim_;
  RowArrays arrays_;
  Rows current_;  // added, not yet stepped
  Rows next_;
  // The rows of a table in low precision as floats, and their numbers.
  std::vector<float> weights_;
  std::vector<int32_t> weight_rows_;
  std::vector<float> old_weights_;  // with decoupled_weight_decay
};

}  // namespace jte::kernels

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_KERNELS_UPDATE_STEP_ROWS_H_
