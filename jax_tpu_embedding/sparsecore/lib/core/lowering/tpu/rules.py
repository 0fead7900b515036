# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lowering to the custom calls of the TPU's SparseCores.

The compiler makes a program of each call: which rows to fetch, their exchange
between devices, and the optimizer, which it gets as a function of one row.

Source: docs/reference/primitives.md, "On TPU".
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import NamedTuple

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import checks
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import column_constants
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import row_function
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import step_operations
import numpy as np


def lookup(
    ctx: mlir.LoweringRuleContext,
    *operands,
    device_batch_size: int,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    sharding_strategy: int = constants.MOD_SHARDING,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
):
  """Rule of the lookup."""
  *coo, table = operands
  checks.check_operands(
      ctx,
      "Lookup",
      ctx.avals_in[:-1],
      table=ctx.avals_in[-1],
      batch_size=device_batch_size,
      max_ids_per_partition=max_ids_per_partition,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      enable_minibatching=enable_minibatching,
  )
  config = {
      "max_ids_per_partition": max_ids_per_partition,
      "max_unique_ids_per_partition": max_unique_ids_per_partition,
      "sharding_strategy": sharding_strategy,
      "pad_value": constants.PADDING_VALUE,
  }
  if quantization_config is not None:
    names = ("min_value", "max_value", "num_buckets")
    config["quantization_config"] = dict(
        zip(names, quantization_config, strict=True)
    )
  target = calls.LOOKUP
  if enable_minibatching:
    target = calls.LOOKUP_MINIBATCHES
  else:
    coo = coo[:-1]  # There is one minibatch.
  return [
      calls.sparsecore_call(
          ctx,
          target,
          (*coo, table, _zeros(ctx)),
          result=calls.type_of(ctx, ctx.avals_out[0]),
          config=config,
      )
  ]


def local_lookup(
    ctx: mlir.LoweringRuleContext, *operands, device_batch_size: int
):
  """Rule of the lookup in rows that the device itself has."""
  del device_batch_size  # that of the result
  embedding_ids, sample_ids, gains, table = operands
  checks.check_local_table(ctx.avals_in[-1])
  return [
      calls.sparsecore_call(
          ctx,
          calls.LOCAL_LOOKUP,
          (table, embedding_ids, sample_ids, gains, _zeros(ctx)),
          result=calls.type_of(ctx, ctx.avals_out[0]),
      )
  ]


def update(
    rule: update_rules.UpdateRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    computation_name: str | None = None,
    sharding_strategy: int = constants.MOD_SHARDING,
    enable_minibatching: bool = False,
    min_value: float | None = None,
    max_value: float | None = None,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    **static_params,
):
  """Rule of the update with `rule`; in place if table and slots are donated."""
  rule = update_rules.with_options(
      rule, row_options, stochastic_rounding=stochastic_rounding
  )
  name = computation_name or f"{rule.name}_optimizer_update"
  what = f"Update {name!r}"
  named = _in_call_form(ctx, rule, operands)
  tables = (named.table, *named.slots)
  checks.check_operands(
      ctx,
      what,
      [operand.aval for operand in named.coo],
      table=named.table.aval,
      batch_size=named.gradient.aval.shape[0],
      max_ids_per_partition=max_ids_per_partition,
      max_unique_ids_per_partition=max_unique_ids_per_partition,
      enable_minibatching=enable_minibatching,
  )

  function_name, constants_of_step = _add_step(
      ctx,
      what,
      name,
      row_function.row_function(
          rule,
          static_params,
          table_shape=named.table.aval.shape,
          min_value=min_value,
          max_value=max_value,
      ),
      num_rows=1 + len(tables),
  )
  numbers = [operand.value for operand in named.hyperparameters]
  numbers += constants_of_step

  coo = [operand.value for operand in named.coo]
  arrays = [operand.value for operand in tables]
  gradient = named.gradient.value
  if enable_minibatching:
    if named.table.aval.ndim == 1:
      libtpu_features.MINIBATCHES_WITHOUT_COLUMNS.check(what)
    target, arrays = calls.UPDATE_MINIBATCHES, (*coo, *arrays, gradient)
  else:
    target, arrays = calls.UPDATE, (*coo[:-1], gradient, *arrays)
  results = calls.sparsecore_call(
      ctx,
      target,
      (*arrays, *numbers),
      result=calls.tuple_type_of(ctx, [table.aval for table in tables]),
      config={
          "max_ids_per_partition": max_ids_per_partition,
          "max_unique_ids_per_partition": max_unique_ids_per_partition,
          "pad_value": constants.PADDING_VALUE,
          "sharding_strategy": sharding_strategy,
          "num_slot_variables": len(rule.slots),
          "num_hyperparameters": len(numbers),
      },
      row_function=function_name,
  )
  elements = calls.tuple_elements(results, len(tables))
  return [
      _float32(ctx, _Operand(element, table.aval), out.shape).value
      for element, table, out in zip(
          elements, tables, ctx.avals_out, strict=True
      )
  ]


def custom_update(
    ctx: mlir.LoweringRuleContext,
    *operands,
    num_hyperparameters: int,
    custom_computation_fn: custom_update_rule.Computation | None = None,
    stablehlo: str | bytes | None = None,
    computation_name: str = "sparse_dense_matmul_optimizer_grad",
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    **params,
):
  """Rule of the update with a computation of the caller."""
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
  return update(
      dataclasses.replace(
          rule, step=row_function.step_of_computation(computation)
      ),
      ctx,
      *operands,
      computation_name=computation_name,
      row_options=row_options,
      stochastic_rounding=stochastic_rounding,
      **params,
  )


def _add_step(
    ctx: mlir.LoweringRuleContext,
    what: str,
    name: str,
    row_function: row_function.RowFunction,
    *,
    num_rows: int,
) -> tuple[str, list[mlir.ir.Value]]:
  """Adds the step to the program: its name there, and its constants."""
  name = calls.add_row_function(
      ctx, name, row_function.function, row_function.rows
  )
  column_constants.compute(ctx, name)
  step_operations.check(ctx, what, name, num_rows=num_rows)
  return name, [
      calls.emit(ctx, functools.partial(jnp.float32, number))
      for number in row_function.constants
  ]


class _Operand(NamedTuple):
  """A value of the program and what is known of it."""

  value: mlir.ir.Value
  aval: jax.core.ShapedArray


def _in_call_form(
    ctx: mlir.LoweringRuleContext,
    rule: update_rules.UpdateRule,
    operands: Sequence[mlir.ir.Value],
) -> update_rules.UpdateOperands:
  """The operands as _Operands in the shapes and types that the call takes.

  Slots with one number per row have no columns there, the gradient has those of
  the table, and hyperparameters are f32[].
  """
  named = rule.group_operands(tuple(map(_Operand, operands, ctx.avals_in)))
  columns = named.table.aval.shape[1:]
  gradient_shape = (named.gradient.aval.shape[0], *columns)
  return named._replace(
      slots=tuple(
          _float32(ctx, slot, slot.aval.shape[:1])
          if name in rule.row_slots
          else slot
          for name, slot in zip(rule.slots, named.slots, strict=True)
      ),
      gradient=_float32(ctx, named.gradient, gradient_shape),
      hyperparameters=tuple(
          _float32(ctx, number, ()) for number in named.hyperparameters
      ),
  )


def _float32(
    ctx: mlir.LoweringRuleContext, operand: _Operand, shape: tuple[int, ...]
) -> _Operand:
  """`operand` as float32 in another shape."""
  value, aval = operand

  def convert(x):
    x = x.astype(jnp.float32)
    return x if x.shape == shape else x.reshape(shape)

  return _Operand(
      calls.emit(ctx, convert, [value], [aval]),
      aval.update(shape=shape, dtype=np.dtype(np.float32)),
  )


def _zeros(ctx: mlir.LoweringRuleContext) -> mlir.ir.Value:
  """Zeros in the shape of the result of the rule."""
  (out,) = ctx.avals_out
  return calls.emit(ctx, lambda: jnp.zeros(out.shape, out.dtype))
