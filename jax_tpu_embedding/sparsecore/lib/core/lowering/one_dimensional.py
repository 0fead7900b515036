# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Tables of one column that are written without it: f32[rows].

The rules of a platform that has no use for them are wrapped: they see f32[rows,
1]. A reshape moves nothing, so an update stays in place.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.interpreters import mlir
import jax.numpy as jnp

# Lowers one operation: called with its context, operands and parameters.
LoweringRule = Callable[..., Any]


def with_columns(
    rule: LoweringRule, takes_rows: Callable[[int], bool]
) -> LoweringRule:
  """`rule`, that takes and returns vectors where it has matrices.

  Args:
    rule: takes and returns values of two dimensions.
    takes_rows: whether the operand of a number is such a value. It, and every
      result, gets a column if it has one dimension.
  """

  @functools.wraps(rule)
  def wrapped(ctx: mlir.LoweringRuleContext, *operands, **params):
    matrices = [
        _with_column(aval) if takes_rows(i) else aval
        for i, aval in enumerate(ctx.avals_in)
    ]
    results = rule(
        ctx.replace(
            avals_in=matrices,
            avals_out=[_with_column(aval) for aval in ctx.avals_out],
        ),
        *map(
            functools.partial(_reshape, ctx), operands, ctx.avals_in, matrices
        ),
        **params,
    )
    return [
        _reshape(ctx, value, _with_column(aval), aval)
        for value, aval in zip(results, ctx.avals_out, strict=True)
    ]

  return wrapped


def _with_column(aval: jax.core.ShapedArray) -> jax.core.ShapedArray:
  return aval.update(shape=(*aval.shape, 1)) if len(aval.shape) == 1 else aval


def _reshape(
    ctx: mlir.LoweringRuleContext,
    value: mlir.ir.Value,
    old: jax.core.ShapedArray,
    new: jax.core.ShapedArray,
) -> mlir.ir.Value:
  """`value`, of the shape of `old`, in the shape of `new`."""
  if old.shape == new.shape:
    return value
  reshape = mlir.lower_fun(
      lambda x: jnp.reshape(x, new.shape), multiple_results=False
  )
  (result,) = reshape(ctx.replace(avals_in=[old], avals_out=[new]), value)
  return result
