# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rules of the check of a batch, and of NaN for one that failed.

On CPU the check says what is wrong, and the lookup kernels write NaN themselves
(cc/ffi/failed_buffers.h), since another pass over activations would cost more
than the check. Elsewhere a batch that failed is looked up as one without ids,
and a select follows, which XLA fuses.
"""

from __future__ import annotations

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core.lowering import corrupt_buffers
import numpy as np

_TARGET = "jte_check_batch_cpu"


def cpu(
    ctx: mlir.LoweringRuleContext,
    *operands,
    num_devices: int,
    num_sc_per_device: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
):
  """Rule of the check with the native call."""
  return jax.ffi.ffi_lowering(_TARGET)(
      ctx,
      *operands,
      num_devices=np.int64(num_devices),
      num_sc_per_device=np.int64(num_sc_per_device),
      enable_minibatching=enable_minibatching,
      rows_per_device=np.int64(rows_per_device),
      batch_size=np.int64(batch_size),
  )


def any_platform(
    ctx: mlir.LoweringRuleContext,
    *operands,
    num_sc_per_device: int,
    **params,
):
  """Rule of the check in jnp."""
  del num_sc_per_device  # that of the row pointers

  def check(*operands):
    *coo, unused_device = operands
    _, is_valid = corrupt_buffers.nan_if_corrupt(coo, **params)
    return _empty_if(~is_valid, coo[0])

  return mlir.lower_fun(check, multiple_results=True)(ctx, *operands)


def tpu(ctx: mlir.LoweringRuleContext, row_pointers, *others, **params):
  """Rule of the check where SparseCores read the buffers.

  Of buffers it sees only whether their conversion failed, since to look at
  every cell would take longer than the lookup.
  """
  del others, params

  def check(row_pointers):
    return _empty_if(row_pointers[0] < 0, row_pointers)

  return mlir.lower_fun(check, multiple_results=True)(
      ctx.replace(avals_in=ctx.avals_in[:1]), row_pointers
  )


def _empty_if(
    has_failed: jax.Array, row_pointers: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The results of the check; no partition has an entry if it failed."""
  return jnp.where(has_failed, 0, row_pointers), has_failed[None]


def nan_on_cpu(ctx: mlir.LoweringRuleContext, activations, has_failed):
  """Rule of NaN where the lookup writes it."""
  del ctx, has_failed
  return [activations]


def nan_on_any_platform(ctx: mlir.LoweringRuleContext, *operands):
  """Rule of NaN in jnp."""
  return mlir.lower_fun(
      lambda activations, has_failed: jnp.where(
          has_failed[0], jnp.nan, activations
      ),
      multiple_results=False,
  )(ctx, *operands)
