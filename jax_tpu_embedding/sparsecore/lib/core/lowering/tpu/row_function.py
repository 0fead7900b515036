# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The step of an update rule as the function that the TPU compiler wants.

It takes gradient, row, slots and hyperparameters of one row, all f32[1, D]:
the compiler broadcasts the numbers. What has one number per row (a table
without columns, a row slot) is f32[1].

Source: docs/reference/primitives.md, "On TPU".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import row_options
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import custom_step
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import vector_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFunction:
  """A function of rows, and numbers that it takes after those of the rule."""

  function: Callable[..., Sequence[jax.Array]]
  rows: tuple[jax.core.ShapedArray, ...]  # the arguments
  constants: tuple[float, ...] = ()  # more hyperparameters


def row_function(
    rule: update_rules.UpdateRule,
    static_params: dict[str, Any],
    *,
    table_shape: tuple[int, ...],
    min_value: float | None,
    max_value: float | None,
) -> RowFunction:
  """The function of one step of `rule` with clipping.

  Args:
    rule: the optimizer, options included.
    static_params: those of the rule.
    table_shape: (rows, D), or (rows,) for a table without columns.
    min_value: lower bound of the new row, if any.
    max_value: upper bound, if any.

  Raises:
    NotImplementedError: if the table has no columns, and the step has an
      operation that is not element by element.
  """
  num_slots = len(rule.slots)

  def step(gradient, row, *rest):
    slots = tuple(
        jnp.reshape(slot, (1, 1)) if name in rule.row_slots else slot
        for name, slot in zip(rule.slots, rest[:num_slots], strict=True)
    )
    hyperparameters = tuple(
        value != 0 if name in rule.bool_hyperparameters else value
        for name, value in zip(
            rule.hyperparameters, rest[num_slots:], strict=True
        )
    )
    new_row, new_slots = rule.step(
        gradient, row, slots, hyperparameters, **static_params
    )
    results = (
        row_options.clamp(new_row, min_value, max_value),
        *(
            jnp.reshape(slot, (1,)) if name in rule.row_slots else slot
            for name, slot in zip(rule.slots, new_slots, strict=True)
        ),
    )
    if rule.skips_non_finite_gradients:
      is_skipped = row_options.is_non_finite(gradient)
      choose = functools.partial(_choose, is_skipped)
      results = tuple(map(choose, (row, *rest[:num_slots]), results))
    return results

  row = jax.core.ShapedArray((1, *(table_shape[1:] or (1,))), jnp.float32)
  number = row.update(shape=(1,))
  rows = (
      row,
      row,
      *(number if name in rule.row_slots else row for name in rule.slots),
      *(row,) * len(rule.hyperparameters),
  )
  if len(table_shape) == 2:
    return RowFunction(function=step, rows=rows)
  vectors = vector_steps.on_vectors(step, rows)
  return RowFunction(
      function=vectors.function,
      rows=(number,) * (len(rows) + len(vectors.constants)),
      constants=vectors.constants,
  )


def _choose(
    is_first: jax.Array, first: jax.Array, second: jax.Array
) -> jax.Array:
  """One of two arrays, f32[1, D] or f32[1], by a number f32[1, 1], 1 or 0."""
  # The compiler broadcasts numbers, but no truth values, and ends the process
  # for a choice of f32[1, 1] (0.0.51).
  number = jnp.reshape(is_first, (1,) * first.ndim)
  return jnp.where(jnp.broadcast_to(number, first.shape) > 0, first, second)


def step_of_computation(
    computation: custom_update_rule.Computation,
) -> Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]:
  """The step of an update rule that runs a caller's computation.

  That of the rule itself is for many rows at once, and for hyperparameters that
  are single numbers.
  """
  plain = custom_step.plain_step(computation)

  def step(gradient, row, slots, hyperparameters):
    row, *slots = plain(gradient, row, *slots, *hyperparameters)
    return row, tuple(slots)

  return step
