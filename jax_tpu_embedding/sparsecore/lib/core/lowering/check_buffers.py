# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The check of COO buffers before a plain update: an error on CPU, else NaN.

The plain rules (reference.py, messages.py) leave out what is out of range, so
that without it an update would lose ids, and nobody would know.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import device_records
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device
from jax_tpu_embedding.sparsecore.lib.core.lowering import partitions

_NUM_COO = len(update_rules.COO_OPERANDS)


def update(
    rule: one_device.LoweringRule,
    table_operand: Callable[[dict[str, Any]], int],
    gradient_operand: int,
    *,
    raises: bool = False,
) -> one_device.LoweringRule:
  """The rule of an update over any number of devices, with the check.

  Args:
    rule: of the update.
    table_operand: from the parameters of the update, the number of its table.
    gradient_operand: the number of its activation gradient.
    raises: whether programs of the platform can, as long as one process has all
      devices.
  """

  @functools.wraps(rule)
  def wrapped(
      ctx: mlir.LoweringRuleContext,
      *operands,
      enable_minibatching: bool = False,
      **params,
  ):
    table = ctx.avals_in[table_operand(params)]
    gradient = ctx.avals_in[gradient_operand]
    axis = mesh_axis.axis_of_table(ctx, table)
    if raises and (axis is None or axis.is_in_one_process):
      check = _or_raise
    else:
      check = nan_if_corrupt

    def on_buffers(*coo):
      return check(
          coo,
          axis,
          rows_per_device=table.shape[0],
          batch_size=gradient.shape[0],
          enable_minibatching=enable_minibatching,
      )

    avals = ctx.avals_in[:_NUM_COO]
    coo = exchange.lower(
        on_buffers,
        ctx.replace(avals_in=avals, avals_out=avals),
        operands[:_NUM_COO],
    )
    return rule(
        ctx,
        *coo,
        *operands[_NUM_COO:],
        enable_minibatching=enable_minibatching,
        **params,
    )

  return wrapped


def _or_raise(
    coo: Sequence[jax.Array], axis: mesh_axis.MeshAxis | None, **shape: Any
) -> Sequence[jax.Array]:
  """The buffers; an error, on all devices, if those of one are corrupt."""
  row_pointers, *others = coo
  _, _, _, gains, _ = coo
  records, device = device_records.publish(axis, coo, gains, **shape)
  # What reads the buffers waits for the check by the row pointers.
  return *device_records.hold([row_pointers], records, device), *others


def nan_if_corrupt(
    coo: Sequence[jax.Array],
    axis: mesh_axis.MeshAxis | None,
    *,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> Sequence[jax.Array]:
  """The buffers; if they are corrupt, some that are not, with NaN for gains.

  All rows that they name then become NaN. A number that is out of range stands
  for the nearest that is not; and if row pointers are wrong, all cells are
  entries for the first SparseCore.

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    axis: of the devices; None if there is one.
    rows_per_device: of the table.
    batch_size: samples of the device.
    enable_minibatching: which layout the buffers have.
  """
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches = coo
  num_devices = 1 if axis is None else axis.size
  num_sc_per_device = layout.num_sc_per_device_from_row_pointers(
      row_pointers.size, num_devices, enable_minibatching
  )
  sizes = dict(
      num_cells=embedding_ids.size,
      num_sources=num_sc_per_device,
      num_targets=num_devices * num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  has_partitions = partitions.are_valid(row_pointers, num_minibatches, **sizes)
  num_regions = 1 if enable_minibatching else num_sc_per_device
  row_pointers = jnp.where(
      has_partitions, row_pointers, embedding_ids.size // num_regions
  )
  num_minibatches = jnp.where(has_partitions, num_minibatches, 1)

  is_entry = partitions.read_partitions(
      row_pointers, num_minibatches, **sizes
  ).is_entry
  rows = jnp.clip(embedding_ids, 0, rows_per_device // num_sc_per_device - 1)
  samples = jnp.clip(sample_ids, 0, batch_size // num_sc_per_device - 1)
  is_wrong = is_entry & ((rows != embedding_ids) | (samples != sample_ids))
  is_valid = has_partitions & ~jnp.any(is_wrong)
  gains = jnp.where(is_valid, gains, jnp.nan)
  return row_pointers, rows, samples, gains, num_minibatches
