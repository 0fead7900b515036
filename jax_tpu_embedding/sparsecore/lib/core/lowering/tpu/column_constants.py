# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Constants that differ between the columns, for the TPU compiler.

It makes a function of one row into one of many: whatever is f32[1, D] becomes
f32[<=128, D], by name only. Up to libtpu 0.0.50, a constant stays one row,
"Expected instruction to have shape equal to f32[1,16], actual shape is
f32[<=128,16]", but numbers of columns, as integers, do not: everything else is
computed from them. Since 0.0.51 it is the other way round.
"""

from __future__ import annotations

import itertools

import jax
from jax import lax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features
import numpy as np


def compute(ctx: mlir.LoweringRuleContext, function: str) -> None:
  """Replaces them, in a function of the module and in those it calls."""
  if libtpu_features.CONSTANT_ROWS.is_missing():
    replacements = {
        "stablehlo.iota": _float_iota,
        "stablehlo.constant": _constant_row,
    }
  else:
    replacements = {"stablehlo.iota": _constant_iota}
  for op in calls.operations(ctx, function):
    if op.name in replacements:
      with mlir.ir.InsertionPoint(op), op.location:
        value = replacements[op.name](ctx, op)
      if value is not None:
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _constant_iota(ctx, op) -> mlir.ir.Value | None:
  """The numbers themselves."""
  del ctx
  result = mlir.ir.RankedTensorType(op.results[0].type)
  numbers = np.indices(tuple(result.shape))[_dimension(op)]
  for dtype in (np.int32, np.uint32, np.float32):
    if mlir.dtype_to_ir_type(np.dtype(dtype)) == result.element_type:
      return mlir.ir_constant(numbers.astype(dtype))
  return None


def _float_iota(ctx, op) -> mlir.ir.Value | None:
  """Numbers of columns as integers, from which floats are made."""
  result = mlir.ir.RankedTensorType(op.results[0].type)
  if not isinstance(result.element_type, mlir.ir.F32Type):
    return None
  return calls.emit(
      ctx,
      lambda: lax.broadcasted_iota(
          jnp.int32, tuple(result.shape), _dimension(op)
      ).astype(jnp.float32),
  )


def _dimension(op) -> int:
  return mlir.ir.IntegerAttr(op.attributes["iota_dimension"]).value


def _constant_row(ctx, op) -> mlir.ir.Value | None:
  """A constant row, as the value of each run of equal columns."""
  elements = mlir.ir.DenseElementsAttr(op.attributes["value"])
  if elements.is_splat:
    return None
  values = np.array(elements)
  dimensions = [i for i, size in enumerate(values.shape) if size > 1]
  if len(dimensions) != 1:
    return None
  return calls.emit(ctx, lambda: _by_runs(values, *dimensions))


def _by_runs(values: np.ndarray, dimension: int) -> jax.Array:
  """`values`, all of whose dimensions but one are 1, from numbers of columns."""
  column = lax.broadcasted_iota(jnp.int32, values.shape, dimension)
  # By their bits, which tell zero from minus zero, and have one NaN alike.
  runs = [
      list(run)
      for _, run in itertools.groupby(
          enumerate(values.ravel()), lambda x: x[1].tobytes()
      )
  ]
  result = lax.full(values.shape, runs[0][0][1])
  for run in runs[1:]:
    first, value = run[0]
    result = lax.select(
        lax.ge(column, lax.full_like(column, first)),
        lax.full(values.shape, value),
        result,
    )
  return result
