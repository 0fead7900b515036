# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The check of COO buffers before a plain rule: an error on CPU, else NaN.

The plain rules for one device (reference.py) leave out what is out of range, so
that without it ids would be lost, and nobody would know. What packs messages
checks buffers itself, as do the native kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering import corrupt_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering import device_records
from jax_tpu_embedding.sparsecore.lib.core.lowering import exchange
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering import one_device

_NUM_COO = len(update_rules.COO_OPERANDS)


def lookup(rule: one_device.LoweringRule) -> one_device.LoweringRule:
  """The rule of a lookup over any number of devices, with the check.

  Activations of corrupt buffers are NaN, also those of samples without entries.

  Args:
    rule: of the lookup.
  """

  @functools.wraps(rule)
  def wrapped(
      ctx: mlir.LoweringRuleContext,
      *operands,
      enable_minibatching: bool = False,
      **params,
  ):
    params["enable_minibatching"] = enable_minibatching
    table = ctx.avals_in[_NUM_COO]
    if mesh_axis.axis_of_table(ctx, table) is not None:
      return rule(ctx, *operands, **params)

    def on_operands(*operands):
      *coo, table = operands
      coo, is_valid = corrupt_buffers.nan_if_corrupt(
          coo,
          num_devices=1,
          rows_per_device=table.shape[0],
          batch_size=params["device_batch_size"],
          enable_minibatching=enable_minibatching,
      )
      (activations,) = one_device.call(
          rule, ctx.avals_out, *coo, table, **params
      )
      return [jnp.where(is_valid, activations, jnp.nan)]

    return exchange.lower(on_operands, ctx, operands)

  return wrapped


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
    params["enable_minibatching"] = enable_minibatching
    table = ctx.avals_in[table_operand(params)]
    gradient = ctx.avals_in[gradient_operand]
    axis = mesh_axis.axis_of_table(ctx, table)
    if raises and (axis is None or axis.is_in_one_process):
      check = functools.partial(_or_raise, axis)
    elif axis is None:
      check = _or_nan
    else:
      return rule(ctx, *operands, **params)

    def on_buffers(*coo):
      return check(
          coo,
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
    return rule(ctx, *coo, *operands[_NUM_COO:], **params)

  return wrapped


def _or_nan(coo: Sequence[jax.Array], **shape: Any) -> Sequence[jax.Array]:
  """The buffers; some whose rows become NaN, if they are corrupt."""
  coo, _ = corrupt_buffers.nan_if_corrupt(coo, num_devices=1, **shape)
  return coo


def _or_raise(
    axis: mesh_axis.MeshAxis | None, coo: Sequence[jax.Array], **shape: Any
) -> Sequence[jax.Array]:
  """The buffers; an error, on all devices, if those of one are corrupt."""
  row_pointers, *others = coo
  _, _, _, gains, _ = coo
  records, device = device_records.publish(axis, coo, gains, **shape)
  # What reads the buffers waits for the check by the row pointers.
  return *device_records.hold([row_pointers], records, device), *others
