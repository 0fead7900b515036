// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/kernels/update/step_rows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <variant>

#include "jax_tpu_embedding/sparsecore/cc/kernels/table/table_rows.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_block.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/update/row_options.h"

namespace jte::kernels {

namespace {

RowArrays ArraysOf(const RowUpdate& update, int64_t dim) {
  RowArrays arrays{};
  const auto add = [&arrays](const auto* data, int64_t columns) {
    arrays.arrays[arrays.num_arrays++] = {
        reinterpret_cast<const char*>(data),
        columns * static_cast<int64_t>(sizeof(*data))};
  };
  std::visit([&add, dim](auto values) { add(values.data(), dim); },
             update.table);
  for (int k = 0; k < update.num_slots; ++k) {
    add(update.slots[k], update.has_row_slots ? 1 : dim);
  }
  return arrays;
}

}  // namespace

RowStepper::RowStepper(const RowUpdate& update, int64_t dim, int64_t max_rows)
    : update_(update), dim_(dim), arrays_(ArraysOf(update, dim)) {
  for (Rows* rows : {&current_, &next_}) {
    rows->rows.resize(max_rows);
    rows->gradients.resize(max_rows * dim);
  }
  if (!std::holds_alternative<std::span<float>>(update.table)) {
    weights_.resize(max_rows * dim);
    weight_rows_.resize(max_rows);
    std::iota(weight_rows_.begin(), weight_rows_.end(), 0);
  }
  if (update.options.decoupled_weight_decay) {
    old_weights_.resize(max_rows * dim);
  }
}

void RowStepper::Add(int64_t num_rows) {
  next_.size = num_rows;
  if (update_.options.skip_non_finite_gradients) {
    next_.size = KeepFiniteGradients(num_rows, dim_, next_.rows.data(),
                                     next_.gradients.data());
  }
  // Prefetches the rows that the steps of the current rows will not: there are
  // fewer of these.
  for (int64_t i = current_.size; i < next_.size; ++i) {
    arrays_.Prefetch(next_.rows[i]);
  }
  if (current_.size > 0) StepCurrent();
  std::swap(current_, next_);
}

void RowStepper::StepCurrent() {
  RowBlock block{.num_rows = current_.size,
                 .dim = dim_,
                 .gradients = current_.gradients.data(),
                 .weights = weights_.data(),
                 .weight_rows = weight_rows_.data(),
                 .slots = update_.slots,
                 .slot_rows = current_.rows.data(),
                 .arrays = &arrays_,
                 .next_rows = next_.rows.data(),
                 .num_next_rows = next_.size};
  const auto step_in_place = [this, &block](std::span<float> table) {
    block.weights = table.data();
    block.weight_rows = current_.rows.data();
    StepBlock(block);
  };
  const auto step_in_buffer = [this, &block]<typename T>(std::span<T> table) {
    const std::span rows = std::span(current_.rows).first(block.num_rows);
    ReadRows<T>(table, dim_, rows, weights_.data());
    StepBlock(block);
    WriteRows<T>(weights_.data(), dim_, rows, update_.rounding, table);
  };
  if (const auto* table = std::get_if<std::span<float>>(&update_.table)) {
    step_in_place(*table);
  } else if (const auto* table =
                 std::get_if<std::span<Bfloat16>>(&update_.table)) {
    step_in_buffer(*table);
  } else {
    step_in_buffer(std::get<std::span<Float16>>(update_.table));
  }
}

void RowStepper::StepBlock(const RowBlock& block) {
  if (update_.options.decoupled_weight_decay) {
    for (int64_t i = 0; i < block.num_rows; ++i) {
      std::copy_n(block.weight(i), dim_, old_weights_.data() + i * dim_);
    }
  }
  PrepareGradients(block, update_.options);
  update_.step(block, update_.hyperparameters);
  FinishWeights(block, update_.options, old_weights_.data());
}

}  // namespace jte::kernels
