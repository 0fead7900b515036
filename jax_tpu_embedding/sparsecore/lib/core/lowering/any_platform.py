# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lowering for every platform: trace the jnp reference."""

from __future__ import annotations

import functools

from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import custom_update_rule
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference
from jax_tpu_embedding.sparsecore.lib.core.lowering import reference_convert_ids


def lookup(
    ctx: mlir.LoweringRuleContext,
    *operands,
    device_batch_size: int,
    quantization_config: tuple[float, float, int] | None = None,
    enable_minibatching: bool = False,
    **unused_limits,
):
  """Rule of the lookup. There are no buffers here that limits could size."""
  function = functools.partial(
      reference.lookup,
      device_batch_size=device_batch_size,
      num_sc_per_device=_num_sc_per_device(ctx, enable_minibatching),
      quantization_config=quantization_config,
      enable_minibatching=enable_minibatching,
  )
  return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def update(
    rule: update_rules.UpdateRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    rounding_shards: tuple[int, int] | None = None,
    min_value: float | None = None,
    max_value: float | None = None,
    enable_minibatching: bool = False,
    **params,
):
  """Rule of the update with `rule`, which is one without options."""
  rule = update_rules.with_options(
      rule, row_options, stochastic_rounding=stochastic_rounding
  )
  function = functools.partial(
      reference.update,
      rule,
      num_sc_per_device=_num_sc_per_device(ctx, enable_minibatching),
      min_value=min_value,
      max_value=max_value,
      enable_minibatching=enable_minibatching,
      rounding_shards=rounding_shards,
      **{name: params[name] for name in rule.static_params},
  )

  def on_operands(*values):
    return function(rule.group_operands(values))

  return mlir.lower_fun(on_operands, multiple_results=True)(ctx, *operands)


def custom_update(
    ctx: mlir.LoweringRuleContext,
    *operands,
    num_hyperparameters: int,
    custom_computation_fn: custom_update_rule.Computation | None = None,
    stablehlo: str | bytes | None = None,
    row_options: tuple[str, ...] = (),
    stochastic_rounding: bool = False,
    **params,
):
  """Rule of the update with a computation of the caller."""
  rule = custom_update_rule.custom_rule(
      custom_update_rule.computation_of(custom_computation_fn, stablehlo),
      num_operands=len(operands),
      num_hyperparameters=num_hyperparameters,
      row_options=row_options,
      stochastic_rounding=stochastic_rounding,
  )
  return update(
      rule,
      ctx,
      *operands,
      row_options=row_options,
      stochastic_rounding=stochastic_rounding,
      **params,
  )


def convert_ids(ctx: mlir.LoweringRuleContext, *operands, **params):
  """Rule of the conversion of raw ids, which is local to a device."""
  function = functools.partial(reference_convert_ids.convert_ids, **params)
  return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)


def _num_sc_per_device(
    ctx: mlir.LoweringRuleContext, enable_minibatching: bool
) -> int:
  """S, from the size of the row pointers; exchange.py sees to other devices."""
  return layout.num_sc_per_device_from_row_pointers(
      ctx.avals_in[0].size, 1, enable_minibatching
  )
