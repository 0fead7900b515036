# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the TPU compiler takes for granted, or dies of.

It compiles buffers, tables and batches of any size, for any number of
SparseCores, to programs that read the wrong memory (libtpu 0.0.42 to 0.0.51).
Each of these is an error here, before the compiler sees it.

Source: docs/reference/primitives.md, "On TPU".
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import jax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.lowering.tpu import libtpu_features

# "SparseCore only supports 16 GiB of HBM per tensor."
MAX_TABLE_BYTES_PER_DEVICE = 2**34
# Beyond, the compiler runs out of scalar memory: 1024 v5p chips compile and 2048
# do not.
MAX_SPARSECORES = 4096
# Limit times SparseCores. The compiler makes arrays of a few more cells, and the
# sizes of larger ones wrap around, which ends the process.
MAX_CELLS_OF_LIMIT = 2**30


def check_operands(
    ctx: mlir.LoweringRuleContext,
    what: str,
    coo: Sequence[jax.core.ShapedArray],
    *,
    table: jax.core.ShapedArray,
    batch_size: int,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    enable_minibatching: bool,
) -> None:
  """Checks the operands of a lookup or update on one device.

  Args:
    ctx: that of the rule.
    what: the operation, for messages.
    coo: row pointers, embedding ids and so on.
    table: f32[rows, D] or f32[rows]; slots are like it.
    batch_size: samples of the device.
    max_ids_per_partition: limit of the stack.
    max_unique_ids_per_partition: limit of the stack.
    enable_minibatching: which layout the buffers have.

  Raises:
    ValueError: if sizes do not fit each other or the devices.
    NotImplementedError: if they do, and SparseCores or the installed compiler
      cannot do it.
  """
  num_devices = _num_devices(ctx, what)
  num_scs_of_chip = _num_sc_per_device_of_chip(ctx, what)
  num_scs = _num_sc_per_device(
      what, coo[0].size, num_devices, num_scs_of_chip, enable_minibatching
  )
  if num_devices * num_scs > MAX_SPARSECORES:
    raise NotImplementedError(
        f"{what}: {num_devices} devices with {num_scs} SparseCores each are"
        f" {num_devices * num_scs} SparseCores; the TPU compiler takes"
        f" {MAX_SPARSECORES}. Use a smaller slice."
    )
  num_cells = coo[1].size
  multiple = constants.ALIGNMENT * (1 if enable_minibatching else num_scs)
  if num_cells % multiple:
    raise ValueError(
        f"{what}: embedding_ids has {num_cells} cells, which must be a multiple"
        f" of {multiple} for {num_scs} SparseCores. Use the buffers of the"
        " preprocessing as they are."
    )
  if batch_size % num_scs:
    raise ValueError(
        f"{what}: {num_scs} SparseCores cannot share the {batch_size} samples"
        " of a device evenly. Use a batch that is a multiple of"
        f" {num_devices * num_scs}, the SparseCores of all devices."
    )
  _check_table(what, table, num_scs)
  if table.ndim == 2 and table.shape[1] % constants.ALIGNMENT:
    libtpu_features.ANY_WIDTH.check(what)
  max_limit = MAX_CELLS_OF_LIMIT // (num_devices * num_scs)
  for name, limit in (
      ("max_ids_per_partition", max_ids_per_partition),
      ("max_unique_ids_per_partition", max_unique_ids_per_partition),
  ):
    if limit > max_limit:
      raise ValueError(
          f"{what}: {name} is {limit}, and can be {max_limit} at most with"
          f" {num_devices * num_scs} SparseCores. It need not exceed"
          f" {num_cells}, the cells of a device."
      )


def check_local_table(table: jax.core.ShapedArray) -> None:
  """Raises as `check_operands` does for the table of a local lookup."""
  _check_table("Local lookup", table, 1)


def _num_devices(ctx: mlir.LoweringRuleContext, what: str) -> int:
  """The devices of the program, all of which take part in every call."""
  context = jax_private.axis_context(ctx)
  if not isinstance(context, mlir.SPMDAxisContext):
    if context.num_devices > 1:
      raise NotImplementedError(
          f"{what}: called on arrays that are sharded over"
          f" {context.num_devices} devices. Call it on the arrays of one"
          " device, under jax.shard_map."
      )
    return 1
  mesh = context.mesh
  automatic = [
      name
      for name, size in mesh.shape.items()
      if size > 1 and name not in context.manual_axes
  ]
  if automatic:
    raise NotImplementedError(
        f"{what}: called under a jax.shard_map that leaves the mesh axes"
        f" {automatic} to the compiler. Let it map over every axis."
    )
  named = mesh_axis.devices_of(ctx).named_axes()
  if named is not None:
    _check_order(named, mesh, what)
  return mesh.size


def _check_order(
    named: Sequence[str], mesh: jax.sharding.AbstractMesh, what: str
) -> None:
  """Checks that rows are split in the order in which chips exchange them."""
  named = [name for name in named if mesh.shape[name] > 1]
  in_order = [name for name in mesh.axis_names if name in named]
  if named != in_order:
    raise NotImplementedError(
        f"{what}: rows are split over the mesh axes {named}. SparseCores have"
        " them in the order of the devices of the mesh: split them over"
        f" {in_order}."
    )


def tpu_of(ctx: mlir.LoweringRuleContext) -> hardware.DeviceLike | None:
  """A TPU of the program, or None where there is no telling what they are."""
  context = jax_private.axis_context(ctx)
  if isinstance(context, mlir.SPMDAxisContext):
    device = context.mesh.abstract_mesh.abstract_device
  else:
    device = next(iter(context.device_assignment or ()), None)
  if device is None or device.platform != "tpu":
    return None
  return device


def _num_sc_per_device_of_chip(
    ctx: mlir.LoweringRuleContext, what: str
) -> int | None:
  """S of the devices, or None where there is no telling what they are."""
  device = tpu_of(ctx)
  if device is None:
    return None
  if device.device_kind not in hardware.NUM_SC_PER_DEVICE_MAP:
    raise NotImplementedError(
        f"{what}: {device.device_kind!r} is not known to have SparseCores."
        f" Known: {', '.join(sorted(hardware.NUM_SC_PER_DEVICE_MAP))}."
    )
  return hardware.NUM_SC_PER_DEVICE_MAP[device.device_kind]


def _num_sc_per_device(
    what: str,
    num_row_pointers: int,
    num_devices: int,
    num_scs_of_chip: int | None,
    enable_minibatching: bool,
) -> int:
  """S that the buffers were made for, which must be that of the chip."""
  if num_scs_of_chip is None:
    return layout.num_sc_per_device_from_row_pointers(
        num_row_pointers, num_devices, enable_minibatching
    )
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=num_devices,
      num_sc_per_device=num_scs_of_chip,
  )
  expected = layout.row_pointers_per_device(topology, enable_minibatching)
  if num_row_pointers != expected:
    raise ValueError(
        f"{what}: row_pointers has {num_row_pointers} entries; {num_devices}"
        f" devices with {num_scs_of_chip} SparseCores each have {expected} with"
        f" enable_minibatching={enable_minibatching}. Preprocess with"
        f" global_device_count={num_devices} and"
        f" num_sc_per_device={num_scs_of_chip}."
    )
  return num_scs_of_chip


def _check_table(what: str, table: jax.core.ShapedArray, num_scs: int) -> None:
  shape = tuple(table.shape)
  if table.dtype != jnp.float32:
    raise NotImplementedError(
        f"{what}: table is {table.dtype.name}, and SparseCores have float32"
        " tables only. Use dtype float32 on TPU."
    )
  if shape[1:] == (1,):
    raise NotImplementedError(
        f"{what}: table has shape {shape}, and the TPU compiler ends the"
        f" process for a table of one column. Use shape {shape[:1]}."
    )
  multiple = constants.ALIGNMENT * num_scs
  if shape[0] % multiple:
    raise ValueError(
        f"{what}: table has {shape[0]} rows on a device, which must be a"
        f" multiple of {multiple} for {num_scs} SparseCores. Use the tables"
        " that init_embedding_variables makes."
    )
  columns = layout.round_up(math.prod(shape[1:]), constants.ALIGNMENT)
  size = shape[0] * (columns if len(shape) == 2 else 1) * 4
  if size > MAX_TABLE_BYTES_PER_DEVICE:
    raise ValueError(
        f"{what}: table of shape {shape} has {size / 2**30:.1f} GiB on a"
        f" device; SparseCores address"
        f" {MAX_TABLE_BYTES_PER_DEVICE / 2**30:.0f} GiB of a table. Use more"
        " devices, or fewer tables in a stack."
    )
