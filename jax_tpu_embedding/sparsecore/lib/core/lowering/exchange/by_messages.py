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
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import packed
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks as stacks_lib
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import earlier_readers


def lookup(
    steps: types.ModuleType,
    stacks: Sequence[stacks_lib.Lookup],
    axis: mesh_axis.MeshAxis,
) -> Sequence[jax.Array]:
  """The lookups in [rows, D] over the devices along `axis`."""

  # A function of its own, whose results are all that an update waits for
  # (earlier_readers.py): if it waited for the rows that were sent as well, they
  # would take memory until then.
  @earlier_readers.as_one_reader
  def run(operands):
    requests, entries, rows, results = [], [], [], []
    for stack, (coo, table) in zip(stacks, operands, strict=True):
      with stacks_lib.scope(stack):
        request, entry = _pack(
            steps,
            coo,
            axis,
            table.shape[0],
            stack.params["device_batch_size"],
            stack.params,
        )
      requests.append(request)
      entries.append(entry)
    with stacks_lib.scope_of_all(stacks):
      wanted = _all_to_all(requests, axis)
    for stack, (_, table), of_stack in zip(stacks, operands, wanted):
      with stacks_lib.scope(stack):
        rows.append(steps.read_rows(table, of_stack))
    with stacks_lib.scope_of_all(stacks):
      fetched = _all_to_all(rows, axis)
    for stack, entry, of_stack in zip(stacks, entries, fetched):
      with stacks_lib.scope(stack):
        results.append(steps.look_up(entry, of_stack, stack.params))
    return results

  return run([(stack.coo, stack.table) for stack in stacks])


def update(
    steps: types.ModuleType,
    stacks: Sequence[stacks_lib.Update],
    axis: mesh_axis.MeshAxis,
) -> Sequence[Sequence[jax.Array]]:
  """The updates over the devices along `axis`."""
  stacks = [with_rounding_shards(stack, axis) for stack in stacks]
  sent = send_gradients(
      steps,
      [
          stacks_lib.RowGradients(
              coo=stack.operands.coo,
              gradient=stack.operands.gradient.reshape(
                  stack.operands.gradient.shape[0], -1
              ),
              rows_per_device=stack.operands.table.shape[0],
              params=stack.params,
              scope=stack.scope,
          )
          for stack in stacks
      ],
      axis,
  )
  results = []
  for stack, (wanted, received) in zip(stacks, sent, strict=True):
    with stacks_lib.scope(stack):
      results.append(
          steps.step_rows(
              stack.rule, stack.operands, wanted, received, stack.params
          )
      )
  return results


def with_rounding_shards(
    stack: stacks_lib.Update, axis: mesh_axis.MeshAxis
) -> stacks_lib.Update:
  """The update of a stack that says which rows of the table a device has.

  Numbers at random belong to a row, whichever device has it.
  """
  operands = stack.operands
  if operands.rounding_seed is None:
    return stack
  topology = _topology(operands.coo, stack.params, axis)
  num_scs = topology.num_sc_per_device
  first_shard = lax.axis_index(axis.name).astype(jnp.uint32) * num_scs
  seed = jnp.stack([operands.rounding_seed, first_shard])
  return stack._replace(
      operands=operands._replace(rounding_seed=seed),
      params=stack.params | dict(rounding_shards=(topology.num_scs, num_scs)),
  )


def send_gradients(
    steps: types.ModuleType,
    stacks: Sequence[stacks_lib.RowGradients],
    axis: mesh_axis.MeshAxis | None,
) -> Sequence[tuple[messages.Blocks, messages.Blocks]]:
  """Gradients of rows, summed over each SparseCore's entries, to their owners.

  Args:
    steps: messages.py, or a module like it.
    stacks: with the parameters enable_minibatching and
      max_unique_ids_per_partition.
    axis: along which rows are split; None if one device has them all.

  Returns:
    For each stack G times i32[C], the rows that each device names, in this
    device's table, or -1; and G times f32[C, D], the gradient of each; or one
    array of each.
  """
  requests, sums = [], []
  for stack in stacks:
    with stacks_lib.scope(stack):
      request, entries = _pack(
          steps,
          stack.coo,
          axis,
          stack.rows_per_device,
          stack.gradient.shape[0],
          stack.params,
      )
      requests.append(request)
      sums.append(
          steps.sum_gradients(
              entries, stack.gradient, request[0].size, len(request)
          )
      )
  with stacks_lib.scope_of_all(stacks):
    wanted, received = _all_to_all(requests, axis), _all_to_all(sums, axis)
  return list(zip(wanted, received, strict=True))


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
    sent: Sequence[messages.Blocks], axis: mesh_axis.MeshAxis | None
) -> Sequence[messages.Blocks]:
  """Block q to device q; block q of the result is from device q.

  Args:
    sent: a message for each stack. All that goes to a device goes at once.
    axis: of the devices; None if there is one.
  """
  if axis is None:
    return sent
  if len(sent) == 1:
    return [_all_to_all_of_one(*sent, axis)]
  first, *_ = sent
  # A message is G arrays with a block, or one array with G.
  num_blocks = axis.size // len(first)
  received = _all_to_all_of_one(
      [packed.pack(arrays, num_blocks) for arrays in zip(*sent, strict=True)],
      axis,
  )
  unpacked = [
      packed.unpack(x, like)
      for x, like in zip(received, zip(*sent), strict=True)
  ]
  return list(zip(*unpacked, strict=True))


def _all_to_all_of_one(
    blocks: messages.Blocks, axis: mesh_axis.MeshAxis
) -> messages.Blocks:
  """The same for one message.

  XLA for CPU sends one array to each device, and sees that these are the blocks.
  Of an array that has them all it would copy each part, before and after.
  """
  together = lax.all_to_all(
      jnp.concatenate(blocks),
      axis.name,
      split_axis=0,
      concat_axis=0,
      tiled=True,
  )
  return jnp.split(together, len(blocks))
