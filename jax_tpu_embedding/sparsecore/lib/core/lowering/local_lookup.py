# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup in rows that the device itself has."""

from __future__ import annotations

import functools

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core.lowering import cpu as cpu_calls
import numpy as np


def reference(
    embedding_ids: jax.Array,
    sample_ids: jax.Array,
    gains: jax.Array,
    table: jax.Array,
    *,
    device_batch_size: int,
) -> jax.Array:
  """The local lookup in jnp; NaN if an id or a sample is out of range."""
  is_valid = jnp.all(
      (0 <= embedding_ids)
      & (embedding_ids < table.shape[0])
      & (0 <= sample_ids)
      & (sample_ids < device_batch_size)
  )
  out = jnp.zeros((device_batch_size, table.shape[1]), table.dtype)
  out = out.at[sample_ids].add(gains[:, None] * table[embedding_ids])
  return jnp.where(is_valid, out, jnp.nan)


def any_platform(ctx: mlir.LoweringRuleContext, *operands, **params):
  """Rule of the local lookup on any platform."""
  function = functools.partial(reference, **params)
  return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def cpu(ctx: mlir.LoweringRuleContext, *operands, device_batch_size: int):
  """Rule of the local lookup with the native call of the lookup.

  The entries are the one partition of one SparseCore.
  """
  del device_batch_size  # that of the result
  call = jax.ffi.ffi_call(cpu_calls.LOOKUP_TARGET, ctx.avals_out[0])

  def with_row_pointers(embedding_ids, sample_ids, gains, table):
    num_ids = embedding_ids.shape[0]
    padding = (0, -num_ids % constants.ALIGNMENT)
    return call(
        jnp.full(constants.MIN_ROW_POINTERS_PER_BLOCK, num_ids, jnp.int32),
        jnp.pad(embedding_ids, padding),
        jnp.pad(sample_ids, padding),
        jnp.pad(gains, padding),
        jnp.int32(1),  # minibatch
        table,
        num_devices=np.int64(1),
        num_sc_per_device=np.int64(1),
        enable_minibatching=False,
        quantization=np.array([], np.float64),
    )

  return mlir.lower_fun(with_row_pointers, multiple_results=False)(
      ctx, *operands
  )
