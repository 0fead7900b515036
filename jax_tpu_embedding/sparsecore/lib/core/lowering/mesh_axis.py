# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which mesh axis the rows of a table are spread over.

Callers do not say. What a lowering rule knows is the mesh of the surrounding
shard_map, which of its axes are manual, that is, split by shard_map, and with
check_vma, along which of them an operand varies. The rows of a table are the
only thing that a lookup or update does not do for itself on each device, so the
axis that the table varies along is the one to exchange along.
"""

from __future__ import annotations

import dataclasses

import jax
from jax._src import config
from jax.interpreters import mlir

_REMEDY = (
    "Split tables and buffers over one axis, and either name it,"
    " jax.shard_map(..., axis_names={axis}), or leave check_vma on."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshAxis:
  """One axis of a mesh with several devices along it."""

  name: str
  size: int
  # Whether this process has all devices of the mesh; False if not known.
  is_in_one_process: bool


def axis_of_table(
    ctx: mlir.LoweringRuleContext, table: jax.core.ShapedArray
) -> MeshAxis | None:
  """The axis that splits the rows of `table`; None if the device has them all.

  Raises:
    NotImplementedError: if the program spans several devices without shard_map,
      or several axes may split the table.
  """
  context = ctx.module_context.axis_context
  mesh = getattr(context, "mesh", None)
  if mesh is None:
    if context.num_devices > 1:
      raise NotImplementedError(
          "Lookup and update are asked to run over"
          f" {context.num_devices} devices outside of jax.shard_map, where no"
          " device knows its part. Call them inside jax.shard_map with buffers"
          " and tables split over one mesh axis."
      )
    return None
  axes = [
      name
      for name in mesh.axis_names
      if name in context.manual_axes and mesh.shape[name] > 1
  ]
  if config._check_vma.value:  # pylint: disable=protected-access
    axes = [name for name in axes if name in table.mat.varying]
  if len(axes) > 1:
    raise NotImplementedError(
        f"The rows of a table may be split over any of the mesh axes {axes},"
        f" with sizes {[mesh.shape[name] for name in axes]}, and in any order."
        f" {_REMEDY}"
    )
  if not axes:
    return None
  return MeshAxis(
      name=axes[0],
      size=mesh.shape[axes[0]],
      is_in_one_process=_is_in_one_process(mesh),
  )


def _is_in_one_process(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh):
  if not isinstance(mesh, jax.sharding.Mesh):
    return False
  return {d.process_index for d in mesh.devices.flat} == {jax.process_index()}
