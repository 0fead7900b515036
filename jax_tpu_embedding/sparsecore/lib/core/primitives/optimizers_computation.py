# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Row functions of two optimizers, for lowering rules of others.

Programs of the reference import this module; nothing here does.

Source: docs/reference/primitives.md, "Update rules" and "On TPU".
"""

from __future__ import annotations

from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import row_function


def sgd(ctx: mlir.LoweringRuleContext, name: str, dim: int) -> str:
  """Adds one step of SGD to the module that is being lowered.

  A private function of gradient, row and learning rate, all f32[1, dim], whose
  result is a tuple of the new row.

  Args:
    ctx: that of the lowering rule.
    name: of the function.
    dim: columns of the table.

  Returns:
    The name that the function has: another one if `name` was taken.

  Raises:
    ValueError: if `dim` is not positive.
  """
  return _add("sgd", ctx, name, dim)


def adagrad(ctx: mlir.LoweringRuleContext, name: str, dim: int) -> str:
  """As `sgd`; takes and returns the accumulator after the row."""
  return _add("adagrad", ctx, name, dim)


def _add(rule: str, ctx: mlir.LoweringRuleContext, name: str, dim: int) -> str:
  if dim <= 0:
    raise ValueError(f"{rule}: dim must be positive, got {dim}.")
  step = row_function.row_function(
      update_rules.UPDATE_RULES[rule],
      {},
      table_shape=(1, dim),
      min_value=None,
      max_value=None,
  )
  return calls.add_row_function(ctx, name, step.function, step.rows)
