# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a lowering rule knows about the devices it lowers for."""

from __future__ import annotations

from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import layout


def num_sc_per_device(
    ctx: mlir.LoweringRuleContext,
    *,
    num_row_pointers: int,
    enable_minibatching: bool,
) -> int:
  """S, from the size of one device's row pointers.

  Raises:
    NotImplementedError: if the program spans more than one device.
    ValueError: if no S has that many row pointers.
  """
  num_devices = _num_devices(ctx.module_context.axis_context)
  if num_devices > 1:
    raise NotImplementedError(
        f"Lookup and update are asked to run over {num_devices} devices; on"
        " this platform they run on one. Use a mesh of one device."
    )
  return layout.num_sc_per_device_from_row_pointers(
      num_row_pointers, num_devices, enable_minibatching
  )


def _num_devices(axis_context) -> int:
  """The devices that the operands are spread over."""
  if isinstance(axis_context, mlir.SPMDAxisContext):  # in shard_map
    return axis_context.mesh.size
  return axis_context.num_devices
