# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Lookup and update over several devices, made from the rules for one.

The wrappers here leave a program for one device as it is. Inside shard_map over
several devices they move numbers of rows and rows between devices, messages.py,
and call the wrapped rule with entries of one SparseCore in a table that the
device has. A table never moves: traffic depends on ids. Where a platform has
something better within a process, such as shared_memory.py, they use that.

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
    rule: one_device.LoweringRule, in_process: Callable[..., Any] | None = None
) -> one_device.LoweringRule:
  """The rule of a lookup on one device, for any number of devices.

  Args:
    rule: of the lookup.
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
      over_devices = _lookup_by_messages
    else:
      over_devices = in_process

    def on_operands(*operands):
      return over_devices(rule, axis, ctx.avals_out, operands, params)

    return lower(on_operands, ctx, operands)

  return wrapped


def _lookup_by_messages(
    rule: one_device.LoweringRule,
    axis: mesh_axis.MeshAxis,
    avals_out: Sequence[jax.core.ShapedArray],
    operands: Sequence[jax.Array],
    params: dict[str, Any],
) -> list[jax.Array]:
  """The lookup over the devices along `axis`, by `rule` for one."""
  *coo, table = operands
  packed = _pack(coo, axis, table.shape[0], params["device_batch_size"], params)
  wanted = _all_to_all(packed.requests, axis)
  fetched = _all_to_all(messages.read_rows(table, wanted), axis)
  (activations,) = one_device.call(
      rule,
      avals_out,
      *packed[1:],
      jnp.int32(1),  # minibatch
      fetched.reshape(-1, table.shape[1]),
      **params | dict(enable_minibatching=False),
  )
  # The buffers of a conversion that failed (cc/ffi/failed_buffers.h), which
  # have no entries.
  has_failed = coo[0][0] < 0
  return [jnp.where(has_failed, jnp.nan, activations)]


def update(
    rule: one_device.LoweringRule,
    lookup_rule: one_device.LoweringRule,
    table_operand: Callable[[dict[str, Any]], int],
    gradient_operand: int,
    in_process: Callable[..., Any] | None = None,
) -> one_device.LoweringRule:
  """The rule of an update on one device, for any number of devices.

  Args:
    rule: of the update.
    lookup_rule: of the lookup on one device of the same platform. The gradient
      of a row, summed over entries, is a lookup in the activation gradient.
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
      over_devices = functools.partial(_update_by_messages, lookup_rule)
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
    lookup_rule: one_device.LoweringRule,
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
  operands = list(operands)
  gradient = operands[gradient_operand]
  wanted, received = send_gradients(
      lookup_rule,
      axis,
      operands[:_NUM_COO],
      gradient.reshape(gradient.shape[0], -1),
      operands[table_operand].shape[0],
      params,
  )
  operands[:_NUM_COO] = *messages.entries_of(wanted), jnp.int32(1)
  operands[gradient_operand] = received.reshape(-1, *gradient.shape[1:])
  return one_device.call(
      rule, avals_out, *operands, **params | dict(enable_minibatching=False)
  )


def send_gradients(
    lookup_rule: one_device.LoweringRule,
    axis: mesh_axis.MeshAxis | None,
    coo: Sequence[jax.Array],
    gradient: jax.Array,
    rows_per_device: int,
    params: dict[str, Any],
) -> tuple[jax.Array, jax.Array]:
  """Gradients of rows, summed over each SparseCore's entries, to their owners.

  Args:
    lookup_rule: as in `update`.
    axis: along which rows are split; None if one device has them all.
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    gradient: f32[samples, D], of the activations.
    rows_per_device: of the table.
    params: of the update: enable_minibatching, max_unique_ids_per_partition.

  Returns:
    i32[G, C], the rows that each device names, in this device's table, or -1;
    and f32[G * C, D], the gradient of each.
  """
  packed = _pack(coo, axis, rows_per_device, gradient.shape[0], params)
  num_slots = packed.requests.size
  (partial_sums,) = one_device.call(
      lookup_rule,
      [jax.core.ShapedArray((num_slots, gradient.shape[1]), jnp.float32)],
      packed.row_pointers,
      packed.samples,
      packed.slots,
      packed.gains,
      jnp.int32(1),  # minibatch
      gradient,
      device_batch_size=num_slots,
      max_ids_per_partition=num_slots,
      max_unique_ids_per_partition=num_slots,
  )
  wanted = _all_to_all(packed.requests, axis)
  received = _all_to_all(partial_sums.reshape(*wanted.shape, -1), axis)
  return wanted, received.reshape(num_slots, -1)


def _pack(
    coo: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis | None,
    rows_per_device: int,
    batch_size: int,
    params: dict[str, Any],
) -> messages.Packed:
  """messages.pack for the devices along `axis`."""
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
  return messages.pack(
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
    blocks: jax.Array, axis: mesh_axis.MeshAxis | None
) -> jax.Array:
  """Block q [G, ...] to device q; block q of the result is from device q."""
  if axis is None:
    return blocks
  return lax.all_to_all(blocks, axis.name, split_axis=0, concat_axis=0)
