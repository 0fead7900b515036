# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The gradients of rows, on the devices that have the rows.

The first half of an update by messages, and the sums of what arrives; no table
is needed. A row is a number in the tables of all devices, one
after another, so that it means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
import types
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import by_messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import messages
from jax_tpu_embedding.sparsecore.lib.core.lowering.exchange import stacks as stacks_lib


def axis_of_rows(
    embedding_ids: jax.Array,
    params: dict[str, Any],
    devices: mesh_axis.Devices,
) -> mesh_axis.MeshAxis | None:
  """The axis that splits the rows; None if one device has them all.

  Raises:
    ValueError: if rows are split over another number of devices than the
      buffers were made for.
  """
  # Buffers vary along the axis that splits the tables, and are always here.
  axis = devices.axis_of(embedding_ids)
  num_devices = 1 if axis is None else axis.size
  if num_devices != params["global_device_count"]:
    raise ValueError(
        f"The buffers were made for {params['global_device_count']} device(s),"
        f" and the program has {num_devices} along the mesh axis that splits"
        " them. Preprocess with that number as global_device_count, and ask for"
        " gradients of rows inside jax.shard_map."
    )
  return axis


def row_gradients(
    steps: types.ModuleType,
    stacks: Sequence[stacks_lib.RowGradients],
    axis: mesh_axis.MeshAxis | None,
) -> Sequence[Sequence[jax.Array]]:
  """The distinct rows of this device that any device names, and their gradients.

  Args:
    steps: messages.py, or a module like it.
    stacks: with the parameters of the primitive.
    axis: from `axis_of_rows`.
  """
  results = []
  for stack, (wanted, gradients) in zip(
      stacks, by_messages.send_gradients(steps, stacks, axis), strict=True
  ):
    with stacks_lib.scope(stack):
      results.append(_sum_received(steps, stack, wanted, gradients, axis))
  return results


def of_operands(
    operands: Sequence[jax.Array], params: dict[str, Any], scope: str = ""
) -> stacks_lib.RowGradients:
  """What the operands and parameters of the primitive ask for."""
  *coo, gradient = operands
  return stacks_lib.RowGradients(
      coo, gradient, params["rows_per_device"], params, scope
  )


def _sum_received(
    steps: types.ModuleType,
    stack: stacks_lib.RowGradients,
    wanted: messages.Blocks,
    gradients: messages.Blocks,
    axis: mesh_axis.MeshAxis | None,
) -> Sequence[jax.Array]:
  """The rows of one stack, and the sum for each of what devices have sent."""
  rows_per_device = stack.rows_per_device
  enable_minibatching = stack.params.get("enable_minibatching", False)
  num_devices, device = 1, 0
  if axis is not None:
    num_devices, device = axis.size, lax.axis_index(axis.name)
  rows = [
      jnp.where(
          x == messages.NO_ROW,
          constants.PADDING_VALUE,
          x + device * rows_per_device,
      )
      for x in wanted
  ]
  num_sc_per_device = layout.num_sc_per_device_from_row_pointers(
      stack.coo[0].size, num_devices, enable_minibatching
  )
  # A minibatch is sorted by row, all of them are not.
  if num_devices == num_sc_per_device == 1 and not enable_minibatching:
    return rows[0], gradients[0]
  num_results = min(sum(x.size for x in rows), rows_per_device)
  return steps.sum_rows(rows, gradients, num_results)
