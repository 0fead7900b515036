# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One step of an optimizer on distinct rows of a table, in plain jnp."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import low_precision
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils


def step_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    rows: jax.Array,
    grads: jax.Array,
    *,
    row_ids: jax.Array,
    min_value: float | None,
    max_value: float | None,
    **static_params: Any,
) -> tuple[jax.Array, ...]:
  """Steps `rule` on `rows`: read, compute in float32, round, write.

  Args:
    rule: the optimizer, with its options.
    operands: of the update; of them table, slots, hyperparameters and seed.
    rows: i32[n], ascending, each row of the table at most once; rows beyond the
      table, any number of them, are left out.
    grads: f32[n, D], the summed gradient of each.
    row_ids: u32[n], what `rows` are called in the table of all devices.
    min_value: lower bound of the new rows of the table, if any.
    max_value: upper bound, if any.
    **static_params: those of the rule.

  Returns:
    Table and slots. Other rows are as they were.
  """

  def touched(values):
    # A table without columns has one.
    matrix = values.reshape(values.shape[0], -1)
    return matrix.at[rows].get(mode="clip").astype(jnp.float32)

  def write(values, new):
    new = new.reshape(-1, *values.shape[1:])
    if rule.skips_non_finite_gradients:
      is_skipped = row_options.is_non_finite(grads)[:, 0] > 0
      written = jnp.where(is_skipped, values.shape[0], rows)
      return values.at[written].set(new, mode="drop")
    return values.at[rows].set(new, mode="drop", indices_are_sorted=True)

  new_rows, new_slots = rule.step(
      grads,
      touched(operands.table),
      tuple(map(touched, operands.slots)),
      operands.hyperparameters,
      **static_params,
  )
  new_rows = utils.maybe_clip_params(new_rows, min_value, max_value)
  bits = None
  if rule.takes_rounding_seed:
    bits = low_precision.random_bits(
        operands.rounding_seed, row_ids, new_rows.shape[1]
    )
  new_rows = low_precision.round_to(new_rows, operands.table.dtype, bits)
  return (
      write(operands.table, new_rows),
      *map(write, operands.slots, new_slots),
  )
