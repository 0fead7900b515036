# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Over which devices a layer's tables are split, and how to run there."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn import embedding

P = jax.sharding.PartitionSpec


def num_devices_along(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    sharding_axis: str | tuple[str, ...],
) -> int:
  """Devices along an axis of the mesh, or several.

  Raises:
    ValueError: if the mesh lacks an axis, or none is given.
  """
  axes = _as_tuple(sharding_axis)
  if not axes or any(axis not in mesh.shape for axis in axes):
    raise ValueError(
        f"sharding_axis is {sharding_axis!r}, and the mesh has the axes"
        f" {dict(mesh.shape)}. Pass one or several of them."
    )
  return math.prod(mesh.shape[axis] for axis in axes)


def _as_tuple(sharding_axis: str | tuple[str, ...]) -> tuple[str, ...]:
  if isinstance(sharding_axis, str):
    return (sharding_axis,)
  return tuple(sharding_axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupConfig:
  """What a lookup and its update need to know besides arrays.

  Raises:
    ValueError: if the mesh lacks a sharding axis.
  """

  feature_specs: Any  # prepared for `topology.num_scs` SparseCores
  mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
  # The mesh axis that rows and samples are split over, or several, the first
  # of them outermost. Devices along the other axes repeat the work.
  sharding_axis: str | tuple[str, ...]
  num_sc_per_device: int
  table_sharding_strategy: str = "MOD"
  # Whether inputs were preprocessed with it. Raw ids never need it.
  enable_minibatching: bool = False
  feature_stacking_strategy: str = "SPLIT_THEN_STACK"
  # Whether tables are made on the devices of the mesh, as jax.device_put has it.
  # On one device that nobody chose they are not: results of a step would then
  # be on the mesh, dense parameters not yet, and the second step would be
  # compiled once more.
  commits: bool = True

  def __post_init__(self):
    # Raises if the mesh lacks an axis.
    num_devices_along(self.mesh, self.sharding_axis)

  @property
  def axes(self) -> tuple[str, ...]:
    return _as_tuple(self.sharding_axis)

  @property
  def num_shards(self) -> int:
    """Devices that the rows of a table are split over."""
    return num_devices_along(self.mesh, self.sharding_axis)

  @property
  def table_partition(self) -> P:
    """How tables and slots are split."""
    return P(self.sharding_axis, None)

  @property
  def data_partition(self) -> P:
    """How ids, preprocessed inputs and activations are split."""
    return P(self.sharding_axis)

  @property
  def topology(self) -> layout.Topology:
    """Devices and SparseCores that share the tables.

    One program is for all of them, so all are local.
    """
    return layout.Topology(
        local_device_count=self.num_shards,
        global_device_count=self.num_shards,
        num_sc_per_device=self.num_sc_per_device,
    )

  def partition_inputs(
      self, inputs: embedding.PreprocessedInput
  ) -> embedding.PreprocessedInput:
    """`inputs` with the PartitionSpec of every array."""
    return jax.tree.map(
        lambda x: self.data_partition if jax.numpy.ndim(x) else P(), inputs
    )

  def on_each_device(
      self, function: Callable[..., Any], in_specs: Any, out_specs: Any
  ) -> Callable[..., Any]:
    """`function` of one device's parts, as one of global arrays.

    Lookups and updates in it exchange rows along the sharding axis. On a mesh
    of one device it is `function` itself.

    Args:
      function: called with parts of its arguments, positional ones.
      in_specs: a tuple with a PartitionSpec, or a tree of them, for each.
      out_specs: the same for the result.
    """
    if self.mesh.size == 1:
      return function

    def of_device(*args):
      with mesh_axis.rows_are_split_over(self.axes):
        return function(*args)

    # The types of varying values know sets of axes and no order, so that
    # check_vma says nothing that the axes do not. It would refuse activations
    # that are equal along the other axes.
    over_mesh = jax.shard_map(
        of_device,
        mesh=self.mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )

    # Without jit, JAX would run operations of a shard_map one by one.
    @functools.partial(jax.jit, inline=True)
    def of_global_arrays(*args):
      return over_mesh(*self._lay_out(args, in_specs))

    return of_global_arrays

  def _lay_out(self, args: Any, specs: Any) -> Any:
    """`args` split as `specs` say, where that is part of their types.

    On axes of type Auto it is not, and shard_map itself sees to it.
    """
    explicit = jax.sharding.AxisType.Explicit
    types = dict(zip(self.mesh.axis_names, self.mesh.axis_types))
    if any(types[axis] != explicit for axis in self.axes):
      return args
    abstract = getattr(self.mesh, "abstract_mesh", self.mesh)

    def lay_out(spec, arrays):
      sharding = jax.sharding.NamedSharding(abstract, spec)
      return jax.tree.map(
          lambda x: jax.sharding.reshard(jax.numpy.asarray(x), sharding), arrays
      )

    return jax.tree.map(
        lay_out, specs, args, is_leaf=lambda node: isinstance(node, P)
    )
