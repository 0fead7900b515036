# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The lookup in rows that the device itself has."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import check_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_on_device


def reference(
    embedding_ids: jax.Array,
    sample_ids: jax.Array,
    gains: jax.Array,
    table: jax.Array,
    *,
    device_batch_size: int,
    segment_sum: Callable[..., jax.Array] = jax.ops.segment_sum,
) -> jax.Array:
  """The local lookup in jnp; NaN if an id or a sample is out of range.

  `segment_sum` adds the terms of each sample.
  """
  is_valid = jnp.all(
      (0 <= embedding_ids)
      & (embedding_ids < table.shape[0])
      & (0 <= sample_ids)
      & (sample_ids < device_batch_size)
  )
  terms = gains[:, None] * table[embedding_ids]
  out = segment_sum(terms, sample_ids, num_segments=device_batch_size)
  return jnp.where(is_valid, out, jnp.nan)


def any_platform(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    unused_devices: mesh_axis.Devices,
    segment_sum: Callable[..., jax.Array] = jax.ops.segment_sum,
) -> Sequence[jax.Array]:
  """Rule of the local lookup on any platform; `segment_sum` as above."""
  return [reference(*operands, segment_sum=segment_sum, **params)]


def cpu(
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> Sequence[jax.Array]:
  """Rule of the local lookup with the native call of the lookup.

  What is wrong is an error on one device, and NaN on one of several: it is not
  to fail by itself, the others would wait for it.
  """
  *coo, table = as_lookup(*operands)
  if devices.are_several():
    return [check_buffers.lookup(coo, table, params, cpu_on_device)]
  return cpu_calls.lookup(coo, table, params)


def as_lookup(
    embedding_ids: jax.Array,
    sample_ids: jax.Array,
    gains: jax.Array,
    table: jax.Array,
) -> Sequence[jax.Array]:
  """The operands of a lookup: the entries are those of one SparseCore."""
  num_ids = embedding_ids.shape[0]
  padding = (0, -num_ids % constants.ALIGNMENT)
  return (
      jnp.full(constants.MIN_ROW_POINTERS_PER_BLOCK, num_ids, jnp.int32),
      jnp.pad(embedding_ids, padding),
      jnp.pad(sample_ids, padding),
      jnp.pad(gains, padding),
      jnp.int32(1),  # minibatch
      table,
  )
