# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over CPU processes, by sending batches instead of rows.

Every device gets the buffers of all, and knows which of its rows they name.

Forward: activations go from device to device, in the order of the terms of a
sample, and each adds its rows. A device works on another batch in every round,
so that all work at a time but for those that wait for the first, or are done
before the last.

Backward: every device gets the activation gradients of all as well, and steps
its rows as it would in shared memory (shared_memory.py).

So what is sent has as many rows as there are samples. By messages it has as
many as the samples name: more, with many ids per sample of which most differ.

Corrupt buffers of one device fail on none, and what depends on them is NaN, as
by messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls


def serve_lookup(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> bool:
  """Whether `lookup` has the bits of one device, and sends less than messages.

  Terms of a sample are ordered by minibatch first. And lax.ppermute over several
  axes numbers devices in the order of the mesh, whatever the order of the axes.
  """
  return (
      not params.get("enable_minibatching", False)
      and isinstance(axis.name, str)
      and are_smaller(coo, table, params["device_batch_size"], params, axis)
  )


def are_smaller(
    coo: Sequence[jax.Array],
    table: jax.Array,
    batch_size: int,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> bool:
  """Whether a device sends less to each other one than by messages.

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    table: of this device.
    batch_size: samples of the device.
    params: of the lookup or the update.
    axis: along which rows are split.
  """
  *buffers, _ = coo
  num_rows, *columns = table.shape
  num_columns = columns[0] if columns else 1
  of_batch = sum(x.size for x in buffers) + batch_size * num_columns
  room = by_messages.block_size(coo, axis, num_rows, params)
  return of_batch < room * (1 + num_columns)


def lookup(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> jax.Array:
  """The lookup in [rows, D] over the devices along `axis`.

  Those that serve_lookup says.
  """
  last = axis.size - 1

  @jax.jit  # as in by_messages.lookup
  def run(*operands):
    *coo, table = operands
    coo = _of_all(coo, axis)
    device = lax.axis_index(axis.name)
    shape = (params["device_batch_size"], table.shape[1])
    arriving = finished = jnp.zeros(shape, jnp.float32)
    for number in range(2 * axis.size - 1):
      # Batch k is on device d in round k + d; after the last device it goes home.
      activations = cpu_calls.lookup_part(
          coo, table, params, device, number - device, arriving, axis.size
      )
      batches = range(max(0, number - last), min(number, last) + 1)
      arriving = lax.ppermute(
          activations,
          axis.name,
          [
              (number - k, number - k + 1 if number - k < last else k)
              for k in batches
          ],
      )
      if number >= last:
        is_home = device == number - last
        finished = jnp.where(is_home, arriving, finished)
    return finished

  return run(*coo, table)


def update(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Sequence[jax.Array]:
  """The update over the devices along `axis`; `rule` has its options."""
  operands, params = by_messages.with_rounding_shards(operands, params, axis)
  gradient = operands.gradient.reshape(operands.gradient.shape[0], -1)
  return cpu_calls.update_batches(
      rule,
      operands._replace(
          coo=_of_all(operands.coo, axis),
          gradient=lax.all_gather(gradient, axis.name, tiled=True),
      ),
      params,
      lax.axis_index(axis.name),
      axis.size,
  )


def _of_all(
    coo: Sequence[jax.Array], axis: mesh_axis.MeshAxis
) -> Sequence[jax.Array]:
  """The buffers of the devices, one after the other."""
  *buffers, num_minibatches = coo
  return (
      *(lax.all_gather(x, axis.name, tiled=True) for x in buffers),
      num_minibatches,
  )
