# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over several devices, by messages between them.

Inside shard_map over several devices, numbers of rows and rows move between
devices; what these do in between is messages.py. A table never moves: traffic
depends on ids. Where a platform has something better within a process, such as
shared_memory.py, its rules use that.

Forward: numbers to the owners, rows back, and the device pools them in the
order of its buffers. Backward: the gradient of a row, summed over the entries
of one SparseCore, to the owner, which sums these in the order of SparseCores
and steps the row once. Both are the order on one device with all SparseCores,
so the results have the same bits.

`steps` is a module with the functions of messages.py: that one, or one of a
platform. A message is G blocks, or one array with all of them.

Source: docs/design/exchange.md.
"""

from __future__ import annotations

from collections.abc import Sequence
import types
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages


def lookup(
    steps: types.ModuleType,
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> jax.Array:
  """The lookup in [rows, D] over the devices along `axis`."""

  # A function of its own, whose results are all that an update waits for
  # (earlier_readers.py): if it waited for the rows that were sent as well, they
  # would take memory until then.
  @jax.jit
  def run(*operands):
    *coo, table = operands
    requests, entries = _pack(
        steps, coo, axis, table.shape[0], params["device_batch_size"], params
    )
    wanted = _all_to_all(requests, axis)
    fetched = _all_to_all(steps.read_rows(table, wanted), axis)
    return steps.look_up(entries, fetched, params)

  return run(*coo, table)


def update(
    steps: types.ModuleType,
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> Sequence[jax.Array]:
  """The update over the devices along `axis`; `rule` has its options."""
  operands, params = with_rounding_shards(operands, params, axis)
  wanted, received = send_gradients(
      steps,
      operands.coo,
      operands.gradient.reshape(operands.gradient.shape[0], -1),
      operands.table.shape[0],
      params,
      axis,
  )
  return steps.step_rows(rule, operands, wanted, received, params)


def with_rounding_shards(
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis,
) -> tuple[update_rules.UpdateOperands, dict[str, Any]]:
  """Operands and parameters that say which rows of the table a device has.

  Numbers at random belong to a row, whichever device has it.
  """
  if operands.rounding_seed is None:
    return operands, params
  topology = _topology(operands.coo, params, axis)
  num_scs = topology.num_sc_per_device
  first_shard = lax.axis_index(axis.name).astype(jnp.uint32) * num_scs
  seed = jnp.stack([operands.rounding_seed, first_shard])
  return (
      operands._replace(rounding_seed=seed),
      params | dict(rounding_shards=(topology.num_scs, num_scs)),
  )


def send_gradients(
    steps: types.ModuleType,
    coo: Sequence[jax.Array],
    gradient: jax.Array,
    rows_per_device: int,
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis | None,
) -> tuple[messages.Blocks, messages.Blocks]:
  """Gradients of rows, summed over each SparseCore's entries, to their owners.

  Args:
    steps: messages.py, or a module like it.
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    gradient: f32[samples, D], of the activations.
    rows_per_device: of the table.
    params: of the update: enable_minibatching, max_unique_ids_per_partition.
    axis: along which rows are split; None if one device has them all.

  Returns:
    G times i32[C], the rows that each device names, in this device's table, or
    -1; and G times f32[C, D], the gradient of each; or one array of each.
  """
  requests, entries = _pack(
      steps, coo, axis, rows_per_device, gradient.shape[0], params
  )
  sums = steps.sum_gradients(entries, gradient, requests[0].size, len(requests))
  return _all_to_all(requests, axis), _all_to_all(sums, axis)


def _pack(
    steps: types.ModuleType,
    coo: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis | None,
    rows_per_device: int,
    batch_size: int,
    params: dict[str, Any],
) -> tuple[messages.Blocks, Any]:
  """Requests and entries for the devices along `axis`."""
  return steps.pack(
      coo,
      _topology(coo, params, axis),
      block_size=block_size(coo, axis, rows_per_device, params),
      rows_per_device=rows_per_device,
      batch_size=batch_size,
      enable_minibatching=params.get("enable_minibatching", False),
  )


def block_size(
    coo: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis | None,
    rows_per_device: int,
    params: dict[str, Any],
) -> int:
  """C: the rows that a message to one device has room for."""
  _, embedding_ids, *_ = coo
  return messages.capacity(
      _topology(coo, params, axis),
      num_cells=embedding_ids.size,
      rows_per_device=rows_per_device,
      max_unique_ids_per_partition=params["max_unique_ids_per_partition"],
      enable_minibatching=params.get("enable_minibatching", False),
  )


def _topology(
    coo: Sequence[jax.Array],
    params: dict[str, Any],
    axis: mesh_axis.MeshAxis | None,
) -> layout.Topology:
  """The devices along `axis` and their SparseCores."""
  row_pointers, *_ = coo
  num_devices = 1 if axis is None else axis.size
  return layout.Topology(
      local_device_count=1,
      global_device_count=num_devices,
      num_sc_per_device=layout.num_sc_per_device_from_row_pointers(
          row_pointers.size,
          num_devices,
          params.get("enable_minibatching", False),
      ),
  )


def _all_to_all(
    blocks: messages.Blocks, axis: mesh_axis.MeshAxis | None
) -> messages.Blocks:
  """Block q to device q; block q of the result is from device q.

  XLA for CPU sends one array to each device, and sees that these are the blocks.
  Of an array that has them all it would copy each part, before and after.
  """
  if axis is None:
    return blocks
  together = lax.all_to_all(
      jnp.concatenate(blocks),
      axis.name,
      split_axis=0,
      concat_axis=0,
      tiled=True,
  )
  return jnp.split(together, len(blocks))
