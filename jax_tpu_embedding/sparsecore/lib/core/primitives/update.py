# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The update of one stack on one device: one primitive per update rule.

Operands: row_pointers i32[R], embedding_ids i32[B], sample_ids i32[B],
gains f32[B], num_minibatches i32[], table [rows, D] of float32, bfloat16 or
float16, slots f32[rows, D] or, where the rule says so, f32[rows, 1]...,
activation_gradient f32[samples, D], hyperparameters f32[]..., one number f32[]
for each of `row_options` that has one, and rounding_seed u32[] with
`stochastic_rounding`.
A table of one column may be [rows]; its slots then are f32[rows].
Results: table and slots after one step of the rule for each row that has an
entry, with its summed gradient. `lowering/reference/lookup_and_update.py` defines it in jnp.

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
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    enable_minibatching: bool = False,
    min_value: float | None = None,
    max_value: float | None = None,
    **static_params,
) -> jax.core.ShapedArray | tuple[jax.core.ShapedArray, ...]:
  """Checks the operands; the shapes of table and slots."""
  del enable_minibatching  # Both layouts have the same operands.
  rule = update_rules.with_options(
      rule, row_options, stochastic_rounding=stochastic_rounding
  )
  _check_arguments(rule, operands, static_params)
  named = rule.group_operands(operands)
  if "embedding_dim" in rule.static_params:
    _check_embedding_dim(static_params["embedding_dim"], named.table)
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
    utils.ensure_shape(slot, rule.slot_shape(name, named.table.shape), name)
  for value, name in zip(
      named.hyperparameters, rule.hyperparameters, strict=True
  ):
    is_bool = name in rule.bool_hyperparameters
    utils.ensure_dtype(value, jnp.bool_ if is_bool else jnp.float32, name)
    utils.ensure_dim(value, 0, name)
  if stochastic_rounding:
    if named.table.dtype == jnp.float32:
      raise ValueError(
          "stochastic_rounding is for tables of bfloat16 or float16, and the"
          " table is float32, which is not rounded. Leave it out."
      )
    utils.ensure_dtype(named.rounding_seed, jnp.uint32, "rounding_seed")
    utils.ensure_dim(named.rounding_seed, 0, "rounding_seed")
  results = tuple(
      jax.core.ShapedArray(values.shape, values.dtype)
      for values in (named.table, *named.slots)
  )
  return results if rule.slots else results[0]


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


def _check_embedding_dim(embedding_dim, table) -> None:
  """Raises unless a table of this width may have been padded to `table`."""
  utils.ensure_integer(embedding_dim, "embedding_dim")
  columns = utils.get_embedding_dim(table)
  if not 1 <= embedding_dim <= columns:
    raise ValueError(
        "embedding_dim must be the width of the table without padding, in [1,"
        f" {columns}] for operands of {columns} columns, got {embedding_dim}."
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
