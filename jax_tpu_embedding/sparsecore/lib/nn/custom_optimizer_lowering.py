# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Steps of custom optimizers as StableHLO text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import stablehlo_program


def apply_clipping(
    val: jax.Array,
    min_value: float | None = None,
    max_value: float | None = None,
) -> jax.Array:
  """`val` kept within the bounds that are given; NaN stays NaN."""
  if min_value is not None:
    val = jnp.maximum(val, min_value)
  if max_value is not None:
    val = jnp.minimum(val, max_value)
  return val


def lower_to_stablehlo(
    custom_computation_fn: Callable[..., Any],
    embedding_dim: int = 1,
    num_slot_variables: int = 0,
    num_hyperparameters: int = 1,
    min_value: float | None = None,
    max_value: float | None = None,
) -> str:
  """A module whose function `main` is a step, for rows of `embedding_dim`.

  Args:
    custom_computation_fn: takes gradient, row, slots and hyperparameters,
      f32[1, embedding_dim] each; returns the new row, or row and slots.
    embedding_dim: columns of the table, padding included.
    num_slot_variables: slots that the function takes and returns.
    num_hyperparameters: hyperparameters that it takes.
    min_value: lower bound of the new row, if any.
    max_value: upper bound of the new row, if any.

  Raises:
    ValueError: if the number of results is not that of the row and the slots,
      or min_value exceeds max_value.
  """
  if min_value is not None and max_value is not None and min_value > max_value:
    raise ValueError(
        f"min_value must not exceed max_value, got {min_value} > {max_value}."
    )

  def clipped(*args):
    results = custom_computation_fn(*args)
    if not isinstance(results, (tuple, list)):
      results = (results,)
    if len(results) != 1 + num_slot_variables:
      raise ValueError(
          f"The custom optimizer {custom_computation_fn!r} must return the row"
          f" and {num_slot_variables} slots; it returned"
          f" {len(results)} arrays."
      )
    row, *slots = results
    return apply_clipping(row, min_value, max_value), *slots

  row = jax.ShapeDtypeStruct((1, embedding_dim), jnp.float32)
  num_args = 2 + num_slot_variables + num_hyperparameters
  # Arguments that a step does not use are part of its signature too.
  jitted = jax.jit(clipped, keep_unused=True)
  return jitted.lower(*[row] * num_args).as_text()


def wrap_stablehlo_with_limits(
    stablehlo: str | bytes,
    embedding_dim: int,
    num_slot_variables: int,
    num_hyperparameters: int,
    min_value: float | None = None,
    max_value: float | None = None,
) -> str:
  """A module that clips the first result of `main`; without bounds, the same.

  Raises:
    ValueError: if the module is not a step for these numbers.
  """
  text = stablehlo.decode() if isinstance(stablehlo, bytes) else stablehlo
  if min_value is None and max_value is None:
    return text
  return lower_to_stablehlo(
      stablehlo_program.StablehloProgram(text),
      embedding_dim,
      num_slot_variables,
      num_hyperparameters,
      min_value,
      max_value,
  )
