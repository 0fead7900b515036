# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The gradients of rows, on the devices that have the rows.

The first half of an update by messages, exchange.py, and the sums of what
arrives; no table is needed. A row is a number in the tables of all devices, one
after another, so that it means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools

import jax
from jax import lax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device


def row_gradients(
    steps: messages.Steps,
    sum_rule: one_device.LoweringRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
    global_device_count: int,
    rows_per_device: int,
    enable_minibatching: bool = False,
    alone: one_device.LoweringRule | None = None,
    **params,
) -> Sequence[mlir.ir.Value]:
  """Rule of row_gradients, for any number of devices.

  Args:
    steps: of messages.
    sum_rule: of sum_rows, on the same platform.
    ctx: of the lowering.
    *operands: of the primitive.
    global_device_count: devices that the buffers were made for.
    rows_per_device: of the table.
    enable_minibatching: which layout the buffers have.
    alone: the rule for one device that has all rows, if the platform has one.
    **params: the others of the primitive.

  Raises:
    ValueError: if rows are split over another number of devices.
  """
  row_pointers, embedding_ids, *_ = ctx.avals_in
  # Buffers vary along the axis that splits the tables, and are always here.
  axis = mesh_axis.axis_of_table(ctx, embedding_ids)
  num_devices = 1 if axis is None else axis.size
  if num_devices != global_device_count:
    raise ValueError(
        f"The buffers were made for {global_device_count} device(s), and the"
        f" program has {num_devices} along the mesh axis that splits them."
        " Preprocess with that number as global_device_count, and ask for"
        " gradients of rows inside jax.shard_map."
    )
  params["enable_minibatching"] = enable_minibatching
  if axis is None and alone is not None:
    return alone(
        one_device.context(ctx),
        *operands,
        rows_per_device=rows_per_device,
        **params,
    )
  num_sc_per_device = layout.num_sc_per_device_from_row_pointers(
      row_pointers.size, num_devices, enable_minibatching
  )
  # A minibatch is sorted by row, all of them are not.
  is_sum = num_devices == num_sc_per_device == 1 and not enable_minibatching

  def on_operands(*operands):
    *coo, gradient = operands
    wanted, gradients = exchange.send_gradients(
        steps, axis, coo, gradient, rows_per_device, params
    )
    device = 0 if axis is None else lax.axis_index(axis.name)
    rows = [
        jnp.where(
            x == messages.NO_ROW,
            constants.PADDING_VALUE,
            x + device * rows_per_device,
        )
        for x in wanted
    ]
    if is_sum:
      return rows[0], gradients[0]
    terms = itertools.chain.from_iterable(zip(rows, gradients, strict=True))
    return one_device.call(sum_rule, ctx.avals_out, *terms)

  return exchange.lower(on_operands, ctx, operands)


def sum_rows(
    lookup_rule: one_device.LoweringRule,
    ctx: mlir.LoweringRuleContext,
    *operands,
) -> Sequence[mlir.ir.Value]:
  """Rule of sum_rows, which is local to a device.

  Args:
    lookup_rule: of the lookup on one device of the same platform.
    ctx: of the lowering. Its results have room for the distinct rows at least.
    *operands: of the primitive.
  """
  rows_out, unused_values_out = ctx.avals_out

  def on_operands(*operands):
    return _sum_rows(
        lookup_rule,
        jnp.concatenate(operands[::2]),
        jnp.concatenate(operands[1::2]),
        num_results=rows_out.shape[0],
    )

  return exchange.lower(on_operands, ctx, operands)


def _sum_rows(
    lookup_rule: one_device.LoweringRule,
    rows: jax.Array,
    values: jax.Array,
    num_results: int,
) -> tuple[jax.Array, jax.Array]:
  """The distinct rows, ascending, and the sum of the values of each.

  Args:
    lookup_rule: of the lookup on one device.
    rows: i32[m]; PADDING_VALUE where there is none.
    values: f32[m, D], added in this order.
    num_results: at least the number of distinct rows.

  Returns:
    i32[num_results], PADDING_VALUE at the end, and f32[num_results, D], zero
    there.
  """
  positions = jnp.arange(rows.size, dtype=jnp.int32)
  rows, positions = lax.sort((rows, positions), num_keys=1)
  is_first = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]])
  place = jnp.cumsum(is_first, dtype=jnp.int32) - 1
  num_entries = jnp.sum(rows != constants.PADDING_VALUE, dtype=jnp.int32)
  # The entries of one partition; a sum is a sample.
  padding = (0, -rows.size % constants.ALIGNMENT)
  (sums,) = one_device.call(
      lookup_rule,
      [jax.core.ShapedArray((num_results, values.shape[1]), jnp.float32)],
      jnp.full(constants.MIN_ROW_POINTERS_PER_BLOCK, num_entries),
      jnp.pad(positions, padding),
      jnp.pad(place, padding),
      jnp.pad(jnp.ones(rows.size, jnp.float32), padding),
      jnp.int32(1),  # minibatch
      values,
      device_batch_size=num_results,
      max_ids_per_partition=rows.size,
      max_unique_ids_per_partition=rows.size,
  )
  distinct = jnp.full(num_results, constants.PADDING_VALUE, jnp.int32)
  return distinct.at[place].set(rows, mode="drop"), sums
