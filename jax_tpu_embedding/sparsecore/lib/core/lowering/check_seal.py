# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rules of the check of a seal: an error on CPU, else NaN."""

from __future__ import annotations

import jax
from jax.interpreters import mlir
import jax.numpy as jnp

_TARGET = "jte_check_seal_cpu"


def cpu(
    ctx: mlir.LoweringRuleContext, seal, num_minibatches, *gains, message: str
):
  """The lookup waits for the check by the number of minibatches."""
  call = jax.ffi.ffi_lowering(_TARGET, operand_output_aliases={1: 0})
  (checked,) = call(
      ctx.replace(avals_in=ctx.avals_in[:2], avals_out=ctx.avals_out[:1]),
      seal,
      num_minibatches,
      message=message,
  )
  return [checked, *gains]


def any_platform(ctx: mlir.LoweringRuleContext, *operands, message: str):
  """Where a program cannot raise: gains that make all activations NaN."""
  del message
  return mlir.lower_fun(nan_if_broken, multiple_results=True)(ctx, *operands)


def nan_if_broken(
    seal: jax.Array, num_minibatches: jax.Array, *gains: jax.Array
) -> tuple[jax.Array, ...]:
  """The operands after the seal, with NaN for gains if it is broken."""
  first, h, h_square, g, g_square = seal
  is_intact = (first == 1) & (h_square == h * h) & (g_square == g * g)
  return num_minibatches, *(jnp.where(is_intact, x, jnp.nan) for x in gains)
