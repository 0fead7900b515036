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
    return matrix.at[rows].get(mode="clip")

  def write(values, new):
    new = new.reshape(-1, *values.shape[1:])
    if rule.skips_non_finite_gradients:
      written = jnp.where(is_skipped(rule, grads), values.shape[0], rows)
      return values.at[written].set(new, mode="drop")
    return values.at[rows].set(new, mode="drop", indices_are_sorted=True)

  variables = (operands.table, *operands.slots)
  new = new_rows(
      rule,
      operands,
      tuple(map(touched, variables)),
      grads,
      row_ids=row_ids,
      min_value=min_value,
      max_value=max_value,
      **static_params,
  )
  return tuple(map(write, variables, new))


def new_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    rows: tuple[jax.Array, ...],
    grads: jax.Array,
    *,
    row_ids: jax.Array,
    min_value: float | None,
    max_value: float | None,
    **static_params: Any,
) -> tuple[jax.Array, ...]:
  """What `rule` makes of the rows of a table and its slots.

  Args:
    rule: as of step_rows, like what has the same name there.
    operands: of them hyperparameters and seed.
    rows: of the table [n, D], of its type, and of each slot.
    grads: f32[n, D].
    row_ids: u32[n].
    min_value: of the new rows of the table.
    max_value: of them.
    **static_params: those of the rule.

  Returns:
    The same rows after a step, those of the table in its type, also where
    is_skipped says that they are not to be written.
  """
  table, *slots = (values.astype(jnp.float32) for values in rows)
  new_table, new_slots = rule.step(
      grads, table, tuple(slots), operands.hyperparameters, **static_params
  )
  new_table = row_options.clamp(new_table, min_value, max_value)
  bits = None
  if rule.takes_rounding_seed:
    bits = low_precision.random_bits(
        operands.rounding_seed, row_ids, new_table.shape[1]
    )
  return low_precision.round_to(new_table, rows[0].dtype, bits), *new_slots


def is_skipped(rule: update_rules.UpdateRule, grads: jax.Array) -> jax.Array:
  """bool[n], which rows keep what they have for the sake of their gradient."""
  if not rule.skips_non_finite_gradients:
    return jnp.zeros(grads.shape[0], bool)
  return row_options.is_non_finite(grads)[:, 0] > 0
