# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update of one stack on one device with a computation of the caller.

Operands: as those of `update.py`, but activation_gradient and hyperparameters
(f32[] or f32[1]), with the numbers of `row_options`, stand before the table.
Results: table and slots, in a list.

Source: docs/reference/primitives.md, "Custom update".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils


def _abstract_eval(
    *operands,
    num_hyperparameters: int,
    custom_computation_fn: custom_update_rule.Computation | None = None,
    stablehlo: str | bytes | None = None,
    computation_name: str = "sparse_dense_matmul_optimizer_grad",
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    **params,
) -> tuple[jax.core.ShapedArray, ...]:
  """Checks operands and computation; the shapes of table and slots."""
  utils.ensure_integer(num_hyperparameters, "num_hyperparameters")
  if num_hyperparameters < 0:
    raise ValueError(
        f"num_hyperparameters must be 0 or more, got {num_hyperparameters}."
    )
  computation = custom_update_rule.computation_of(
      custom_computation_fn, stablehlo
  )
  rule = custom_update_rule.custom_rule(
      computation,
      num_operands=len(operands),
      num_hyperparameters=num_hyperparameters,
      row_options=row_options,
      stochastic_rounding=stochastic_rounding,
  )
  num_before = len(custom_update_rule.COO_AND_GRADIENT)
  num_leading = num_before + num_hyperparameters
  results = update.abstract_eval(
      rule,
      *operands[:num_before],
      *map(_as_scalar, operands[num_before:num_leading]),
      *operands[num_leading:],
      computation_name=computation_name,
      row_options=row_options,
      stochastic_rounding=stochastic_rounding,
      **params,
  )
  results = results if rule.slots else (results,)
  # The computation is checked here too, where the caller sees the error.
  row = jax.ShapeDtypeStruct(
      (1, utils.get_embedding_dim(results[0])), jnp.float32
  )
  scalar = jax.ShapeDtypeStruct((), jnp.float32)
  traced = jax.make_jaxpr(rule.step)(
      row,
      row,
      (row,) * len(rule.slots),
      (scalar,) * num_hyperparameters,
  )
  for value in traced.consts:
    if isinstance(value, jax.core.Tracer):
      raise ValueError(
          f"The custom optimizer {computation!r} is compiled by itself, and uses"
          f" {value.aval.str_short()} of the program around it, a learning rate"
          " for example. Pass that as a hyperparameter."
      )
  return results


def _as_scalar(aval: jax.core.ShapedArray) -> jax.core.ShapedArray:
  return aval.update(shape=()) if aval.shape == (1,) else aval


custom_update_p = define.primitive(
    custom_update_rule.CUSTOM_PRIMITIVE_NAME,
    _abstract_eval,
    operation="custom_update",
    multiple_results=True,
    differentiation_hint=update.DIFFERENTIATION_HINT,
)
