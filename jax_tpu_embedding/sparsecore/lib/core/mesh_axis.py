# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which mesh axis the rows of a table are spread over.

Callers need not say. What a lowering rule knows is the mesh of the surrounding
shard_map, which of its axes are manual, that is, split by shard_map, and with
check_vma, along which of them an operand varies. The rows of a table are the
only thing that a lookup or update does not do for itself on each device, so the
axis that the table varies along is the one to exchange along.

What no rule can know is the order of several axes that split the rows together.
Callers who split them so say which, with `rows_are_split_over`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import math
from typing import Any

import jax
from jax.experimental import xla_metadata
from jax.interpreters import mlir
from jax_tpu_embedding.sparsecore.lib.core import jax_private

_REMEDY = (
    "Split tables and buffers over one axis, and either name it,"
    " jax.shard_map(..., axis_names={axis}), or leave check_vma on; or name all"
    " that split them, in order: with mesh_axis.rows_are_split_over(axes)."
)
# JAX keeps metadata with the operations that are traced under it, through
# autodiff, loops and jit, until they are lowered. XLA ignores this key.
_METADATA_KEY = "jte_rows_are_split_over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshAxis:
  """One axis of a mesh with several devices along it, or several, as one."""

  name: str | tuple[str, ...]  # as collectives take it
  size: int
  # Whether this process has all devices of the mesh; False if not known.
  is_in_one_process: bool
  # Axes of several devices that shard_map splits too. Devices along them share
  # no rows, but may wait for each other.
  others: tuple[str, ...] = ()


def rows_are_split_over(
    axes: str | Sequence[str],
) -> contextlib.AbstractContextManager[None]:
  """Says which mesh axes split the rows of tables, for what is traced in it.

  Args:
    axes: as in PartitionSpec(axes, None) of the tables, in that order.

  Raises:
    ValueError: if there is none, or one of them twice.
  """
  axes = (axes,) if isinstance(axes, str) else tuple(axes)
  if not axes or len(set(axes)) < len(axes):
    raise ValueError(
        "rows_are_split_over takes the mesh axes that split the rows, each"
        f" once, got {axes}. Leave it out where no axis or only one could."
    )
  return xla_metadata.set_xla_metadata(**{_METADATA_KEY: ",".join(axes)})


def named_axes() -> list[str] | None:
  """The axes of the surrounding rows_are_split_over, None outside of it."""
  return _read_axes(jax_private.current_metadata())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
  """The devices of a program, as one operation in it sees them."""

  # That of the surrounding shard_map; None outside of it.
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None
  manual_axes: frozenset[str]  # those that shard_map splits
  count: int  # of the program outside of shard_map
  checks_vma: bool  # whether shard_map has check_vma
  axes_in_metadata: Sequence[str] | None  # what rows_are_split_over was told

  def axis_of(self, table: Any) -> MeshAxis | None:
    """The axis that splits the rows of `table`; None if a device has them all.

    Args:
      table: an operand of the operation, with an `aval`.

    Raises:
      NotImplementedError: if the program spans several devices without
        shard_map, or several axes may split the table.
    """
    if self.mesh is None:
      if self.count > 1:
        raise NotImplementedError(
            f"Lookup and update are asked to run over {self.count} devices"
            " outside of jax.shard_map, where no device knows its part. Call"
            " them inside jax.shard_map with buffers and tables split over one"
            " mesh axis."
        )
      return None
    sizes = self.mesh.shape
    axes = self.named_axes()
    if axes is None:
      axes = self._possible_axes(table.aval)
      if len(axes) > 1:
        raise NotImplementedError(
            f"The rows of a table may be split over any of the mesh axes {axes},"
            f" with sizes {[sizes[name] for name in axes]}, and in any order."
            f" {_REMEDY}"
        )
    axes = [name for name in axes if sizes[name] > 1]
    if not axes:
      return None
    return MeshAxis(
        name=axes[0] if len(axes) == 1 else tuple(axes),
        size=math.prod(sizes[name] for name in axes),
        is_in_one_process=_is_in_one_process(self.mesh),
        others=tuple(x for x in self._axes_of_several() if x not in axes),
    )

  def named_axes(self) -> Sequence[str] | None:
    """The axes of rows_are_split_over when the operation was traced.

    Raises:
      ValueError: if shard_map does not split all of them.
    """
    axes = self.axes_in_metadata
    if axes is None or self.mesh is None:
      return axes
    unknown = [
        name
        for name in axes
        if name not in self.manual_axes and self.mesh.shape.get(name) != 1
    ]
    if unknown:
      manual = [n for n in self.mesh.axis_names if n in self.manual_axes]
      raise ValueError(
          f"rows_are_split_over was told {axes}, and jax.shard_map is over the"
          f" mesh axes {manual}, without {unknown}. Name those that are in"
          " PartitionSpec(axes, None) of the tables."
      )
    return axes

  def are_several(self) -> bool:
    """Whether the operation is part of a shard_map over several devices."""
    return self.mesh is not None and bool(self._axes_of_several())

  def _axes_of_several(self) -> list[str]:
    """The axes of several devices that shard_map splits."""
    return [
        name
        for name in self.mesh.axis_names
        if name in self.manual_axes and self.mesh.shape[name] > 1
    ]

  def _possible_axes(self, table: jax.core.ShapedArray) -> list[str]:
    """Axes of several devices along which the table may differ."""
    axes = self._axes_of_several()
    if self.checks_vma:
      varying = jax_private.varies_over(table)
      axes = [name for name in axes if name in varying]
    return axes


def devices_of(ctx: mlir.LoweringRuleContext) -> Devices:
  """The devices that a lowering rule is called for."""
  context = jax_private.axis_context(ctx)
  mesh = getattr(context, "mesh", None)
  return Devices(
      mesh=mesh,
      manual_axes=frozenset() if mesh is None else context.manual_axes,
      count=1 if mesh is not None else context.num_devices,
      checks_vma=jax_private.is_vma_checked(),
      axes_in_metadata=_read_axes(jax_private.metadata_of_operation(ctx)),
  )


def _read_axes(metadata: Mapping[str, Any] | None) -> list[str] | None:
  """What rows_are_split_over wrote."""
  if not metadata or _METADATA_KEY not in metadata:
    return None
  return metadata[_METADATA_KEY].split(",")


def _is_in_one_process(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh):
  if not isinstance(mesh, jax.sharding.Mesh):
    return False
  return {d.process_index for d in mesh.devices.flat} == {jax.process_index()}
