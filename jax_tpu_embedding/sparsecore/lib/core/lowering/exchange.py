# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over several devices, made from the rules for one.

The wrappers here leave a program for one device as it is. Inside shard_map over
several devices they move numbers of rows and rows between devices; what these
do in between is messages.py. A table never moves: traffic depends on ids. Where
a platform has something better within a process, such as shared_memory.py, they
use that.

Forward: numbers to the owners, rows back, and the device pools them in the
order of its buffers. Backward: the gradient of a row, summed over the entries
of one SparseCore, to the owner, which sums these in the order of SparseCores
and steps the row once. Both are the order on one device with all SparseCores,
so the results have the same bits.

Source: docs/design/exchange.md.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax import lax
from jax._src import config
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device

_NUM_COO = len(update_rules.COO_OPERANDS)


def lookup(
    rule: one_device.LoweringRule,
    steps: messages.Steps,
    in_process: Callable[..., Any] | None = None,
) -> one_device.LoweringRule:
  """The rule of a lookup on one device, for any number of devices.

  Args:
    rule: of the lookup.
    steps: of messages.
    in_process: what to do without messages if one process has all devices; see
      shared_memory.lookup.
  """

  @functools.wraps(rule)
  def wrapped(
      ctx: mlir.LoweringRuleContext,
      *operands,
      enable_minibatching: bool = False,
      **params,
  ):
    params["enable_minibatching"] = enable_minibatching
    axis = mesh_axis.axis_of_table(ctx, ctx.avals_in[_NUM_COO])
    if axis is None:
      return rule(one_device.context(ctx), *operands, **params)
    if in_process is None or not axis.is_in_one_process:
      over_devices = functools.partial(_lookup_by_messages, steps)
    else:
      over_devices = functools.partial(in_process, rule)

    def on_operands(*operands):
      return over_devices(axis, ctx.avals_out, operands, params)

    return lower(on_operands, ctx, operands)

  return wrapped


def _lookup_by_messages(
    steps: messages.Steps,
    axis: mesh_axis.MeshAxis,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    params: dict[str, Any],
) -> list[jax.Array]:
  """The lookup over the devices along `axis`."""

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
    return steps.look_up(avals_out, entries, fetched, params)

  return run(*operands)


def update(
    rule: one_device.LoweringRule,
    steps: messages.Steps,
    table_operand: Callable[[dict[str, Any]], int],
    gradient_operand: int,
    in_process: Callable[..., Any] | None = None,
) -> one_device.LoweringRule:
  """The rule of an update on one device, for any number of devices.

  Args:
    rule: of the update.
    steps: of messages.
    table_operand: from the parameters of the update, the number of its table.
    gradient_operand: the number of its activation gradient.
    in_process: what to do without messages if one process has all devices; see
      shared_memory.update.
  """

  @functools.wraps(rule)
  def wrapped(
      ctx: mlir.LoweringRuleContext,
      *operands,
      enable_minibatching: bool = False,
      **params,
  ):
    params["enable_minibatching"] = enable_minibatching
    table = table_operand(params)
    axis = mesh_axis.axis_of_table(ctx, ctx.avals_in[table])
    if axis is None:
      return rule(one_device.context(ctx), *operands, **params)
    if in_process is None or not axis.is_in_one_process:
      over_devices = functools.partial(_update_by_messages, steps)
    else:
      over_devices = in_process

    def on_operands(*operands):
      return over_devices(
          rule,
          axis,
          ctx.avals_out,
          *_with_rounding_shards(axis, operands, params),
          table_operand=table,
          gradient_operand=gradient_operand,
      )

    return lower(on_operands, ctx, operands)

  return wrapped


def _with_rounding_shards(
    axis: mesh_axis.MeshAxis,
    operands: Sequence[jax.Array],
    params: dict[str, Any],
) -> tuple[Sequence[jax.Array], dict[str, Any]]:
  """Operands and parameters that say which rows of the table a device has.

  Numbers at random belong to a row, whichever device has it.
  """
  if not params.get("stochastic_rounding"):
    return operands, params
  topology = _topology(operands[0].size, axis, params["enable_minibatching"])
  num_scs = topology.num_sc_per_device
  first_shard = lax.axis_index(axis.name).astype(jnp.uint32) * num_scs
  return (
      (*operands[:-1], jnp.stack([operands[-1], first_shard])),
      params | dict(rounding_shards=(topology.num_scs, num_scs)),
  )


def _update_by_messages(
    steps: messages.Steps,
    rule: one_device.LoweringRule,
    axis: mesh_axis.MeshAxis,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    params: dict[str, Any],
    *,
    table_operand: int,
    gradient_operand: int,
) -> list[jax.Array]:
  """The update over the devices along `axis`, by `rule` for one."""
  gradient = operands[gradient_operand]
  wanted, received = send_gradients(
      steps,
      axis,
      operands[:_NUM_COO],
      gradient.reshape(gradient.shape[0], -1),
      operands[table_operand].shape[0],
      params,
  )
  return steps.step_rows(
      rule,
      avals_out,
      operands,
      wanted,
      received,
      params,
      gradient_operand=gradient_operand,
  )


def send_gradients(
    steps: messages.Steps,
    axis: mesh_axis.MeshAxis | None,
    coo: Sequence[jax.Array],
    gradient: jax.Array,
    rows_per_device: int,
    params: dict[str, Any],
) -> tuple[messages.Blocks, messages.Blocks]:
  """Gradients of rows, summed over each SparseCore's entries, to their owners.

  Args:
    steps: of messages.
    axis: along which rows are split; None if one device has them all.
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    gradient: f32[samples, D], of the activations.
    rows_per_device: of the table.
    params: of the update: enable_minibatching, max_unique_ids_per_partition.

  Returns:
    G times i32[C], the rows that each device names, in this device's table, or
    -1; and G times f32[C, D], the gradient of each.
  """
  requests, entries = _pack(
      steps, coo, axis, rows_per_device, gradient.shape[0], params
  )
  sums = steps.sum_gradients(entries, gradient, requests[0].size, len(requests))
  return _all_to_all(requests, axis), _all_to_all(sums, axis)


def _pack(
    steps: messages.Steps,
    coo: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis | None,
    rows_per_device: int,
    batch_size: int,
    params: dict[str, Any],
) -> tuple[messages.Blocks, Any]:
  """Requests and entries for the devices along `axis`."""
  row_pointers, embedding_ids, *_ = coo
  enable_minibatching = params["enable_minibatching"]
  topology = _topology(row_pointers.size, axis, enable_minibatching)
  block_size = messages.capacity(
      topology,
      num_cells=embedding_ids.size,
      rows_per_device=rows_per_device,
      max_unique_ids_per_partition=params["max_unique_ids_per_partition"],
      enable_minibatching=enable_minibatching,
  )
  return steps.pack(
      coo,
      topology,
      block_size=block_size,
      rows_per_device=rows_per_device,
      batch_size=batch_size,
      enable_minibatching=enable_minibatching,
  )


def lower(
    function: Callable[..., Any],
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[mlir.ir.Value],
) -> Sequence[mlir.ir.Value]:
  """Lowers `function`, in which everything varies along the axis.

  Saying so at each step is what check_vma asks for; the results are what
  abstract evaluation says in any case.
  """
  with config._check_vma(False):  # pylint: disable=protected-access
    return mlir.lower_fun(function)(ctx, *operands)


def _topology(
    num_row_pointers: int,
    axis: mesh_axis.MeshAxis | None,
    enable_minibatching: bool,
) -> layout.Topology:
  """The devices along `axis` and their SparseCores."""
  num_devices = 1 if axis is None else axis.size
  return layout.Topology(
      local_device_count=1,
      global_device_count=num_devices,
      num_sc_per_device=layout.num_sc_per_device_from_row_pointers(
          num_row_pointers, num_devices, enable_minibatching
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
  return jnp.split(together, axis.size)
