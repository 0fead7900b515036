# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update of one stack on one device: one primitive per update rule.

Operands: row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B],
gains f32[B], num_minibatches i32[], table f32[rows, D], slots f32[rows, D]...,
activation_gradient f32[samples, D], hyperparameters f32[]...
Results: table and slots after one step of the rule for each row that has an
entry, with its summed gradient. `lowering/reference.py` defines it in jnp.

Source: docs/reference/primitives.md, "Update".
"""

from __future__ import annotations

import functools

import jax
from jax.extend import core
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.primitives import define
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils

DIFFERENTIATION_HINT = (
    "it is the backward pass. Call it on values outside of jax.grad, or use the"
    " SparseCoreEmbed layer."
)


def abstract_eval(
    rule: update_rules.UpdateRule,
    *operands,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    computation_name: str | None = None,
    sharding_strategy: int = utils.MOD_SHARDING,
    enable_minibatching: bool = False,
    min_value: float | None = None,
    max_value: float | None = None,
    **static_params,
) -> jax.core.ShapedArray | tuple[jax.core.ShapedArray, ...]:
  """Checks the operands; the shapes of table and slots."""
  del enable_minibatching  # Both layouts have the same operands.
  _check_arguments(rule, operands, static_params)
  named = rule.group_operands(operands)
  utils.validate_abstract_eval_params(
      *named.coo,
      named.table,
      named.gradient,
      max_ids_per_partition=max_ids_per_partition,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      computation_name=(
          f"{rule.name}_optimizer_update"
          if computation_name is None
          else computation_name
      ),
      sharding_strategy=sharding_strategy,
      min_value=min_value,
      max_value=max_value,
  )
  for slot, name in zip(named.slots, rule.slots, strict=True):
    utils.ensure_dtype(slot, jnp.float32, name)
    utils.ensure_shape(slot, named.table.shape, name)
  for value, name in zip(
      named.hyperparameters, rule.hyperparameters, strict=True
  ):
    is_bool = name in rule.bool_hyperparameters
    utils.ensure_dtype(value, jnp.bool_ if is_bool else jnp.float32, name)
    utils.ensure_dim(value, 0, name)
  result = jax.core.ShapedArray(named.table.shape, jnp.float32)
  return (result,) * (1 + len(rule.slots)) if rule.slots else result


def _check_arguments(rule, operands, static_params) -> None:
  """Raises ValueError unless there are as many as the rule has names for."""
  if len(operands) != len(rule.operand_names):
    raise ValueError(
        f"{rule.primitive_name} takes {len(rule.operand_names)} operands,"
        f" {', '.join(rule.operand_names)}; got {len(operands)}."
    )
  if set(static_params) != set(rule.static_params):
    raise ValueError(
        f"{rule.primitive_name} takes the static parameters"
        f" {sorted(rule.static_params)} beside those of every rule; got"
        f" {sorted(static_params)}."
    )


def _define(rule: update_rules.UpdateRule) -> core.Primitive:
  return define.primitive(
      rule.primitive_name,
      functools.partial(abstract_eval, rule),
      operation=f"update_{rule.name}",
      multiple_results=bool(rule.slots),
      differentiation_hint=DIFFERENTIATION_HINT,
  )


# Name of the rule -> its primitive.
UPDATE_PRIMITIVES = {
    name: _define(rule) for name, rule in update_rules.UPDATE_RULES.items()
}
