# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The check of COO buffers before a plain rule: an error, or NaN.

The plain rules for one device (lookup_and_update.py) leave out what is out of range, so
that without it ids would be lost, and nobody would know. What packs messages
checks buffers itself, as do the native kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
import types
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import device_records
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import corrupt_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update


def lookup(
    coo: Sequence[jax.Array],
    table: jax.Array,
    params: dict[str, Any],
    on_device: types.ModuleType = lookup_and_update,
) -> jax.Array:
  """The lookup on one device by the module `on_device`, with the check.

  Activations of corrupt buffers are NaN, also those of samples without entries.
  """
  coo, is_valid = corrupt_buffers.nan_if_corrupt(
      coo,
      num_devices=1,
      rows_per_device=table.shape[0],
      batch_size=params["device_batch_size"],
      enable_minibatching=params.get("enable_minibatching", False),
  )
  activations = on_device.lookup_on_one_device(coo, table, params)
  return jnp.where(is_valid, activations, jnp.nan)


def update(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    params: dict[str, Any],
    on_device: types.ModuleType = lookup_and_update,
) -> Sequence[jax.Array]:
  """The update on one device by the module `on_device`, with the check.

  Rows that corrupt buffers name become NaN.
  """
  coo, _ = corrupt_buffers.nan_if_corrupt(
      operands.coo, num_devices=1, **_sizes(operands, params)
  )
  return on_device.update_on_one_device(
      rule, operands._replace(coo=coo), params
  )


def or_raise(
    updates: Sequence[stacks.Update], axis: mesh_axis.MeshAxis | None
) -> Sequence[stacks.Update]:
  """The updates; an error, on all devices, if the buffers of one are corrupt.

  For programs that can raise, as long as one process has all devices.
  """
  own = []
  for update in updates:
    _, _, _, gains, _ = update.operands.coo
    own.append(
        device_records.record(
            update.operands.coo,
            gains,
            num_devices=1 if axis is None else axis.size,
            **_sizes(update.operands, update.params),
        )
    )
  records, device = device_records.publish(own, axis)
  # What reads the buffers waits for the check by the row pointers.
  checked = device_records.hold(
      [update.operands.coo[0] for update in updates],
      records,
      device,
      [()] * len(updates),
      num_devices=1 if axis is None else axis.size,
  )
  return [
      update._replace(
          operands=update.operands._replace(
              coo=(row_pointers, *update.operands.coo[1:])
          )
      )
      for update, row_pointers in zip(updates, checked, strict=True)
  ]


def _sizes(
    operands: update_rules.UpdateOperands, params: dict[str, Any]
) -> dict[str, Any]:
  return dict(
      rows_per_device=operands.table.shape[0],
      batch_size=operands.gradient.shape[0],
      enable_minibatching=params.get("enable_minibatching", False),
  )
