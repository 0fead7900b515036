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
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import packed
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks as stacks_lib
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import earlier_readers

# Bytes of an array that goes with others. For a larger one it costs more to be
# put together with them, and taken apart, than a collective of its own.
_LARGEST_IN_COMMON = 1 << 18


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
    stacks: Sequence[stacks_lib.Lookup], axis: mesh_axis.MeshAxis
) -> Sequence[jax.Array]:
  """The lookups in [rows, D] over the devices along `axis`.

  Those that serve_lookup says.
  """
  last = axis.size - 1

  @earlier_readers.as_one_reader  # as in by_messages.lookup
  def run(operands):
    with stacks_lib.scope_of_all(stacks):
      batches = _of_all([coo for coo, _ in operands], axis)
    device = lax.axis_index(axis.name)
    arriving = [
        jnp.zeros(
            cpu_calls.activations_of(table, stack.params).shape, jnp.float32
        )
        for stack, (_, table) in zip(stacks, operands, strict=True)
    ]
    finished = packed.pack(arriving)
    for number in range(2 * axis.size - 1):
      # Batch k is on device d in round k + d; after the last device it goes home.
      activations = []
      for stack, (_, table), coo, x in zip(
          stacks, operands, batches, arriving, strict=True
      ):
        with stacks_lib.scope(stack):
          activations.append(
              cpu_calls.lookup_part(
                  coo,
                  table,
                  stack.params,
                  device,
                  number - device,
                  x,
                  axis.size,
              )
          )
      on_their_way = range(max(0, number - last), min(number, last) + 1)
      with stacks_lib.scope_of_all(stacks):
        together = lax.ppermute(
            packed.pack(activations),
            axis.name,
            [
                (number - k, number - k + 1 if number - k < last else k)
                for k in on_their_way
            ],
        )
        if number >= last:
          is_home = device == number - last
          finished = jnp.where(is_home, together, finished)
        arriving = packed.unpack(together, activations)
    return packed.unpack(finished, arriving)

  return run([(stack.coo, stack.table) for stack in stacks])


def update(
    stacks: Sequence[stacks_lib.Update], axis: mesh_axis.MeshAxis
) -> Sequence[Sequence[jax.Array]]:
  """The updates over the devices along `axis`."""
  stacks = [by_messages.with_rounding_shards(stack, axis) for stack in stacks]
  with stacks_lib.scope_of_all(stacks):
    batches = _of_all([stack.operands.coo for stack in stacks], axis)
    gradients = _all_gather(
        [
            stack.operands.gradient.reshape(
                stack.operands.gradient.shape[0], -1
            )
            for stack in stacks
        ],
        axis,
    )
  results = []
  for stack, coo, gradient in zip(stacks, batches, gradients, strict=True):
    with stacks_lib.scope(stack):
      results.append(
          cpu_calls.update_batches(
              stack.rule,
              stack.operands._replace(coo=coo, gradient=gradient),
              stack.params,
              lax.axis_index(axis.name),
              axis.size,
          )
      )
  return results


def _of_all(
    batches: Sequence[Sequence[jax.Array]], axis: mesh_axis.MeshAxis
) -> Sequence[Sequence[jax.Array]]:
  """Of each batch the buffers of the devices, one after the other."""
  buffers = [x for (*buffers, _) in batches for x in buffers]
  gathered = iter(_all_gather(buffers, axis))
  return [
      (*(next(gathered) for _ in buffers), num_minibatches)
      for (*buffers, num_minibatches) in batches
  ]


def _all_gather(
    arrays: Sequence[jax.Array], axis: mesh_axis.MeshAxis
) -> Sequence[jax.Array]:
  """Those of the devices, one after the other; the small ones all at once."""
  gather = functools.partial(lax.all_gather, axis_name=axis.name, tiled=True)
  results = [None if _is_small(x) else gather(x) for x in arrays]
  small = [x for x in arrays if _is_small(x)]
  if small:
    unpacked = iter(
        packed.unpack(gather(packed.pack(small)), small, times=axis.size)
    )
    results = [next(unpacked) if x is None else x for x in results]
  return results


def _is_small(x: jax.Array) -> bool:
  return x.size * x.dtype.itemsize <= _LARGEST_IN_COMMON
