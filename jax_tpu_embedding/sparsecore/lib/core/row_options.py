# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What can be done to a row beside the step of its optimizer, whichever it is.

Options are names in a fixed order. One is on or off, each of the others has a
number, f32[]. A rule with options is a rule like any other:
update_rules.with_options makes it.

Source: docs/reference/primitives.md, "Row options".
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

# In the order in which they are applied, and named.
ROW_OPTIONS = (
    "skip_non_finite_gradients",
    "max_gradient_norm",
    "l2_weight_decay",
    "decoupled_weight_decay",
)
# Those without a number.
FLAGS = ("skip_non_finite_gradients",)


def check(row_options: Sequence[str]) -> None:
  """Raises ValueError unless these are some of ROW_OPTIONS, in their order."""
  if tuple(row_options) != tuple(o for o in ROW_OPTIONS if o in row_options):
    raise ValueError(
        f"row_options must be some of {', '.join(ROW_OPTIONS)}, each at most"
        f" once and in this order; got {tuple(row_options)}."
    )


def with_numbers(row_options: Sequence[str]) -> tuple[str, ...]:
  """Those of `row_options` that have a number."""
  return tuple(option for option in row_options if option not in FLAGS)


def clamp(
    x: jax.Array, min_value: float | None, max_value: float | None
) -> jax.Array:
  """`x` kept within the bounds that are given; NaN stays NaN."""
  if min_value is not None and max_value is not None:
    return lax.clamp(jnp.float32(min_value), x, jnp.float32(max_value))
  if min_value is not None:
    return lax.max(jnp.full_like(x, min_value), x)
  if max_value is not None:
    return lax.min(jnp.full_like(x, max_value), x)
  return x


def is_non_finite(grad: jax.Array) -> jax.Array:
  """f32[n, 1]: 1 for rows of f32[n, D] with an infinity or NaN, others 0.

  These are numbers, and no `isfinite` or `any`, because of what the compiler of
  SparseCores takes: lowering/tpu/step_operations.py.
  """
  ones = jnp.where(jnp.abs(grad) < jnp.inf, jnp.float32(0), jnp.float32(1))
  return jnp.max(ones, axis=-1, keepdims=True)


def step(
    inner_step: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]],
    row_options: tuple[str, ...],
    grad: jax.Array,
    row: jax.Array,
    slots: tuple[jax.Array, ...],
    hyper: tuple[jax.Array, ...],
    **static_params: Any,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """`inner_step` with options; `hyper` has their numbers at its end.

  skip_non_finite_gradients is not among them: it leaves out more than a step.

  Args:
    inner_step: the step of an update_rules.UpdateRule.
    row_options: which options, all with numbers.
    grad: f32[n, D].
    row: f32[n, D].
    slots: those of `inner_step`.
    hyper: those of `inner_step`, then one number per option.
    **static_params: those of `inner_step`.

  Returns:
    The new row and the new slots.
  """
  num_inner = len(hyper) - len(row_options)
  numbers = dict(zip(row_options, hyper[num_inner:], strict=True))
  if "max_gradient_norm" in numbers:
    limit = numbers["max_gradient_norm"]
    # A program cannot raise. No gradient is shorter than one of these.
    limit = jnp.where(limit > 0, limit, jnp.full_like(limit, jnp.nan))
    norm = jnp.sqrt(jnp.sum(grad * grad, axis=-1, keepdims=True))
    grad = grad * (limit / jnp.maximum(norm, limit))
  if "l2_weight_decay" in numbers:
    grad = grad + numbers["l2_weight_decay"] * row
  new_row, slots = inner_step(
      grad, row, slots, hyper[:num_inner], **static_params
  )
  if "decoupled_weight_decay" in numbers:
    new_row = new_row - numbers["decoupled_weight_decay"] * row
  return new_row, slots
