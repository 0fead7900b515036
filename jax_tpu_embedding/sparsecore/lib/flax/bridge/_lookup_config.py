# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Over which devices a layer's tables are split, and how to run there."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core import recent_values
from jax_tpu_embedding.sparsecore.lib.core import schedules
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.step import _frozen_tables

P = jax.sharding.PartitionSpec


def num_devices_along(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    sharding_axis: str | tuple[str, ...],
) -> int:
  """Devices along an axis of the mesh, or several.

  Raises:
    ValueError: if the mesh lacks an axis, one is given twice, or none is.
    TypeError: if axes are not strings.
  """
  axes = as_axes(sharding_axis)
  if (
      not axes
      or len(set(axes)) < len(axes)
      or any(axis not in mesh.shape for axis in axes)
  ):
    raise ValueError(
        f"sharding_axis is {sharding_axis!r}, and the mesh has the axes"
        f" {dict(mesh.shape)}. Pass one or several of them, each once."
    )
  return math.prod(mesh.shape[axis] for axis in axes)


def as_axes(sharding_axis: str | tuple[str, ...]) -> tuple[str, ...]:
  """A tuple of axes, where one may be without.

  Raises:
    TypeError: if they are not strings.
  """
  if isinstance(sharding_axis, str):
    return (sharding_axis,)
  if not isinstance(sharding_axis, Sequence) or not all(
      isinstance(axis, str) for axis in sharding_axis
  ):
    raise TypeError(
        "sharding_axis must be the name of a mesh axis or a tuple of names, got"
        f" {sharding_axis!r}."
    )
  return tuple(sharding_axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookupConfig:
  """What a lookup and its update need to know besides arrays.

  Raises:
    ValueError: if the mesh lacks a sharding axis, or `frozen` is not the tables
      of whole stacks.
  """

  feature_specs: _tables.Nested[
      _tables.FeatureSpec
  ]  # prepared for `topology.num_scs` SparseCores
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
  # Names of tables that are looked up and never updated.
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    # Raises if the mesh lacks an axis.
    num_devices_along(self.mesh, self.sharding_axis)
    # Raises if a part of a stack is frozen.
    _frozen_tables.stacks_of(self.feature_specs, self.frozen)

  @property
  def axes(self) -> tuple[str, ...]:
    return as_axes(self.sharding_axis)

  @property
  def frozen_stacks(self) -> set[str]:
    return _frozen_tables.stacks_of(self.feature_specs, self.frozen)

  def freezing(self, stacks: Collection[str]) -> LookupConfig:
    """A copy in which the tables of these stacks are frozen, too."""
    tables = embedding.get_table_specs(self.feature_specs).values()
    names = (t.name for t in tables if t.setting_in_stack.stack_name in stacks)
    return dataclasses.replace(self, frozen=(*self.frozen, *names))

  @property
  def num_shards(self) -> int:
    """Devices that the rows of a table are split over."""
    return num_devices_along(self.mesh, self.sharding_axis)

  @property
  def table_partition(self) -> P:
    """How tables and slots are split, but for those of `partition_tables`."""
    return P(self.sharding_axis, None)

  def partition_tables(self, tables: Mapping[str, Any]) -> dict[str, P]:
    """Stack name -> how its variables are split; replicated ones are not.

    Args:
      tables: by stack name.
    """
    replicated = self.replicated_stacks
    return {
        name: P() if name in replicated else self.table_partition
        for name in tables
    }

  @property
  def replicated_stacks(self) -> tuple[str, ...]:
    """Names of the stacks that every device has as a whole."""
    stacks = embedding.get_stacked_table_specs(self.feature_specs)
    return tuple(name for name in stacks if stacks[name].is_replicated)

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

    Outside of other programs, calls with equal configs share a program, which
    is compiled once. So `function` is one of a module, which says it all.

    Args:
      function: called with this config, and with parts of the arguments.
      in_specs: a tuple with a PartitionSpec, or a tree of them, for each.
      out_specs: the same for the result.
    """
    if self.mesh.size == 1:
      return functools.partial(function, self)

    def of_global_arrays(*args):
      make = lambda config: config._over_mesh(function, in_specs, out_specs)  # pylint: disable=protected-access
      key = None
      if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
        key = self._key()
      if key is None:
        return make(self)(*args)
      specs, structure = jax.tree.flatten(
          (in_specs, out_specs), is_leaf=lambda node: isinstance(node, P)
      )
      program = _PROGRAMS.get(
          (function, key, tuple(specs), structure),
          lambda: make(self._without_initializers()),
      )
      return program(*args)

    return of_global_arrays

  def _over_mesh(
      self, function: Callable[..., Any], in_specs: Any, out_specs: Any
  ) -> Callable[..., Any]:
    """A program, see on_each_device."""

    def of_device(*args):
      with mesh_axis.rows_are_split_over(self.axes):
        return function(self, *args)

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

  def _key(self) -> Hashable | None:
    """Equal for configs of equal programs; None: programs cannot be shared.

    Specs are taken apart: two are equal that are planned in different ways, and
    planning changes them.
    """
    features, structure = jax.tree.flatten(self.feature_specs)
    others = tuple(
        getattr(self, field.name)
        for field in dataclasses.fields(self)
        if field.name != "feature_specs"
    )
    tables = embedding.get_table_specs(self.feature_specs).values()
    optimizers = [vars(table.optimizer) for table in tables]
    if any(
        isinstance(value, jax.core.Tracer)
        for parameters in optimizers
        for value in parameters.values()
    ):
      return None  # They belong to another program.
    key = (
        others,
        structure,
        tuple(_values(feature, "table_spec") for feature in features),
        tuple(feature.table_spec.name for feature in features),
        tuple(
            (*_values(t, "initializer"), t.setting_in_stack.num_shards)
            for t in tables
        ),
    )
    try:
      is_constant = not any(
          schedules.is_of_nothing(parameters["learning_rate"])
          for parameters in optimizers
      )
    except ValueError:
      return None  # A function without a signature, of which updates complain.
    # A program would keep the first value of what is read in each call.
    return key if is_constant else None

  def _without_initializers(self) -> LookupConfig:
    """A copy that later changes of the specs do not reach.

    A program is kept for long, and an initializer may hold a whole table.
    """
    copies = {
        name: dataclasses.replace(table, initializer=jax.nn.initializers.zeros)
        for name, table in embedding.get_table_specs(self.feature_specs).items()
    }
    feature_specs = jax.tree.map(
        lambda feature: dataclasses.replace(
            feature, table_spec=copies[feature.table_spec.name]
        ),
        self.feature_specs,
    )
    return dataclasses.replace(self, feature_specs=feature_specs)

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


def _values(spec: Any, left_out: str) -> tuple[Any, ...]:
  """The fields of a spec but one, hashable."""
  values = (
      getattr(spec, field.name)
      for field in dataclasses.fields(spec)
      if field.name != left_out
  )
  return tuple(tuple(v) if isinstance(v, list) else v for v in values)


# Four for each layer and size of the batch: conversion, check, lookup, update.
_PROGRAMS = recent_values.RecentValues(max_size=64)
