# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What preprocessing hands to lookup and update."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import math
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
import numpy as np

ArrayLike = jax.typing.ArrayLike

_DEFAULT_STRATEGY = "SPLIT_THEN_STACK"


class SparseDenseMatmulInput(NamedTuple):
  """CSR-wrapped COO buffers, each a dict by stack name.

  For L local devices with R row pointers and B cells each; the layout is that
  of cc/layout/csr_layout.h.

  Attributes:
    lhs_row_pointers: i32[L * R] (or [L, R]), where the ids of a partition end.
    lhs_embedding_ids: i32[L * B], rows within a shard.
    lhs_sample_ids: i32[L * B], samples within a SparseCore.
    lhs_gains: f32[L * B], what each row is multiplied with.
  """

  lhs_row_pointers: Mapping[str, ArrayLike]
  lhs_embedding_ids: Mapping[str, ArrayLike]
  lhs_sample_ids: Mapping[str, ArrayLike]
  lhs_gains: Mapping[str, ArrayLike]


class PartitionLimits(NamedTuple):
  """The most that a SparseCore sends to another, of one stack in one pass."""

  max_ids_per_partition: int
  max_unique_ids_per_partition: int  # distinct rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferSettings:
  """What the buffers of a batch were made for.

  Hashable: as a static part of PreprocessedInput it is part of the type of a
  traced value, so that a program that was compiled for other limits is compiled
  anew.

  Attributes:
    global_device_count: devices that share the tables.
    num_sc_per_device: SparseCores per device.
    limits: stack name and limits of every stack. No batch of this type exceeds
      them.
    enable_minibatching: whether the buffers have the layout of minibatches.
    feature_stacking_strategy: which samples each SparseCore has, the name of a
      FeatureStackingStrategy.
    batches: feature name and batch, over all devices, of features that have
      another batch than their specs declare.
  """

  global_device_count: int
  num_sc_per_device: int
  limits: tuple[tuple[str, PartitionLimits], ...]
  enable_minibatching: bool = False
  feature_stacking_strategy: str = _DEFAULT_STRATEGY
  batches: tuple[tuple[str, int], ...] = ()

  @property
  def topology(self) -> layout.Topology:
    """That of one device: all that a program needs."""
    return layout.Topology(
        local_device_count=1,
        global_device_count=self.global_device_count,
        num_sc_per_device=self.num_sc_per_device,
    )

  def limits_of(self, stack_name: str) -> PartitionLimits:
    return dict(self.limits)[stack_name]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PreprocessedInput:
  """The buffers of a batch, and what a lookup has to know about them.

  Attributes:
    sparse_dense_matmul_input: the buffers.
    num_minibatches: that the buffers hold; i32[L], all equal, or a scalar.
    settings: what the buffers were made for, a static part of the pytree. None
      for buffers of unknown origin: lookups then go by the shapes, their
      arguments and the limits of the specs.
  """

  sparse_dense_matmul_input: SparseDenseMatmulInput
  num_minibatches: ArrayLike = dataclasses.field(
      default_factory=lambda: np.array(1, np.int32)
  )
  settings: BufferSettings | None = dataclasses.field(
      default=None, metadata=dict(static=True)
  )

  @property
  def lhs_row_pointers(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_row_pointers

  @property
  def lhs_embedding_ids(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_embedding_ids

  @property
  def lhs_sample_ids(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_sample_ids

  @property
  def lhs_gains(self) -> Mapping[str, ArrayLike]:
    return self.sparse_dense_matmul_input.lhs_gains

  def replace(self, **changes) -> PreprocessedInput:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **changes)

  def __iter__(self) -> Iterator[Mapping[str, ArrayLike]]:
    warnings.warn(
        "Iterating over PreprocessedInput is deprecated: use its attributes.",
        DeprecationWarning,
        stacklevel=2,
    )
    return iter(self.sparse_dense_matmul_input)


class DeviceBuffers(NamedTuple):
  """The buffers of one stack on one device: operands of the primitives."""

  row_pointers: jax.Array  # i32[R]
  embedding_ids: jax.Array  # i32[B]
  sample_ids: jax.Array  # i32[B]
  gains: jax.Array  # f32[B]
  num_minibatches: jax.Array  # i32[]


def device_buffers(
    preprocessed_inputs: PreprocessedInput | SparseDenseMatmulInput,
    settings: BufferSettings,
) -> dict[str, DeviceBuffers]:
  """The operands of the primitives for every stack.

  Args:
    preprocessed_inputs: one device's part of a preprocessed batch.
    settings: what check_settings found.

  Raises:
    ValueError: if num_minibatches has more than one dimension.
  """
  if isinstance(preprocessed_inputs, SparseDenseMatmulInput):
    warnings.warn(
        "SparseDenseMatmulInput as input of a lookup or update is deprecated:"
        " pass the PreprocessedInput.",
        DeprecationWarning,
        stacklevel=4,
    )
    preprocessed_inputs = PreprocessedInput(preprocessed_inputs)
  num_minibatches = jnp.asarray(preprocessed_inputs.num_minibatches, jnp.int32)
  if num_minibatches.ndim > 1:
    raise ValueError(
        "num_minibatches must be a scalar or have one entry per device, got"
        f" shape {num_minibatches.shape}."
    )
  if num_minibatches.ndim == 1:
    num_minibatches = num_minibatches[0]
  arrays = preprocessed_inputs.sparse_dense_matmul_input
  num_row_pointers = layout.row_pointers_per_device(
      settings.topology, settings.enable_minibatching
  )
  buffers = {}
  for name in arrays.lhs_row_pointers:
    row_pointers, *others = (jnp.asarray(by_name[name]) for by_name in arrays)
    # The primitives tell the number of SparseCores from the most that there can
    # be; what is beyond the minibatches is not read.
    missing = num_row_pointers - row_pointers.size
    if missing > 0:
      row_pointers = jnp.pad(row_pointers, (0, missing))
    buffers[name] = DeviceBuffers(row_pointers, *others, num_minibatches)
  return buffers


def check_settings(
    feature_specs: Any,
    preprocessed_inputs: PreprocessedInput | SparseDenseMatmulInput,
    embedding_variables: Mapping[str, Any] | None = None,
    *,
    global_device_count: int | None,
    num_sc_per_device: int | None,
    enable_minibatching: bool | None,
    feature_stacking_strategy: str | None,
) -> BufferSettings:
  """What one device's buffers were made for; callers and tables must agree.

  Args:
    feature_specs: the prepared specs.
    preprocessed_inputs: the buffers of one device.
    embedding_variables: stack name -> (table f32[rows, D], slots), one device's
      shards; None if there are none.
    global_device_count: what the caller believes, or None, as all that follows.
    num_sc_per_device: SparseCores per device.
    enable_minibatching: whether the buffers have the layout of minibatches.
    feature_stacking_strategy: in any letter case.

  Raises:
    ValueError: if stacks are missing, or the caller or the shapes contradict
      the settings, the tables were prepared for other ones, or there are none
      and the shapes fit no topology.
  """
  stacks = _plan.get_stacked_table_specs(feature_specs)
  row_pointers = {
      name: np.size(x)
      for name, x in preprocessed_inputs.lhs_row_pointers.items()
  }
  check_stack_names(stacks, preprocessed_inputs=row_pointers)
  if embedding_variables is not None:
    check_stack_names(stacks, embedding_variables=embedding_variables)
  said = dict(
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      enable_minibatching=enable_minibatching,
      feature_stacking_strategy=feature_stacking_strategy
      and _feature_stacking.feature_stacking_strategy_to_enum(
          feature_stacking_strategy
      ).name,
  )
  said = {name: value for name, value in said.items() if value is not None}
  settings = getattr(preprocessed_inputs, "settings", None)
  if settings is None:
    settings = _settings_of_shapes(
        feature_specs, stacks, row_pointers, embedding_variables, said
    )
  else:
    for name, value in said.items():
      if value != getattr(settings, name):
        raise ValueError(
            f"{name} is {value!r}, but the inputs were preprocessed with"
            f" {getattr(settings, name)!r}. Leave it out, or preprocess with"
            " the same."
        )
  topology = settings.topology
  expected = layout.row_pointers_per_device(
      topology, settings.enable_minibatching
  )
  for name, size in row_pointers.items():
    if size != expected and not _is_of_fewer_minibatches(size, settings):
      raise ValueError(
          f"Stack {name!r}: the buffers have {size} row pointers,"
          f" expected {expected} for one of {topology.global_device_count}"
          f" devices with {topology.num_sc_per_device} SparseCores and"
          f" enable_minibatching={settings.enable_minibatching}. Pass one"
          " device's part of the inputs, inside shard_map when there are"
          " several devices, and enable_minibatching as in preprocessing."
      )
  if embedding_variables is None:
    _plan.check_planned_for(
        _plan.get_table_specs(feature_specs), topology.num_scs
    )
  else:
    check_tables(feature_specs, embedding_variables, topology)
  return settings


def _is_of_fewer_minibatches(
    num_row_pointers: int, settings: BufferSettings
) -> bool:
  """Whether row pointers are for several minibatches, but not for the most.

  Those for one would have the layout of buffers without minibatches.
  """
  per_minibatch = layout.row_pointers_per_device(settings.topology)
  return (
      settings.enable_minibatching
      and num_row_pointers % per_minibatch == 0
      and 1 < num_row_pointers // per_minibatch < constants.MAX_MINIBATCHES
  )


def check_tables(
    feature_specs: Any,
    embedding_variables: Mapping[str, Any],
    topology: layout.Topology,
) -> None:
  """Checks that tables are those of one device of the topology.

  Raises:
    ValueError: if they have other rows, were prepared for another number of
      SparseCores, or a surrounding shard_map has other devices.
  """
  num_devices = topology.global_device_count
  for name, stack in _plan.get_stacked_table_specs(feature_specs).items():
    table = embedding_variables[name][0]
    found = num_devices_of_table(stack, table)
    if found != num_devices:
      raise ValueError(
          f"Stack {name!r}: the inputs are for {num_devices} devices, and a"
          f" table of shape {table.shape} is that of one of {found}."
          " Preprocess, initialize and look up with the same"
          " global_device_count, inside shard_map when there are several"
          " devices."
      )
  _plan.check_planned_for(
      _plan.get_table_specs(feature_specs), topology.num_scs
  )
  _check_mesh(num_devices)


def _settings_of_shapes(
    feature_specs: Any,
    stacks: Mapping[str, embedding_spec.StackedTableSpec],
    row_pointers: Mapping[str, int],
    embedding_variables: Mapping[str, Any] | None,
    said: Mapping[str, Any],
) -> BufferSettings:
  """The settings of buffers that do not have any.

  A device holds 1 / global_device_count of a stack's rows, and the number of
  its row pointers depends on the SparseCores, so both counts can be told from
  the shapes.

  Args:
    feature_specs: the prepared specs.
    stacks: their stacks.
    row_pointers: stack name -> the number of them.
    embedding_variables: as in check_settings.
    said: fields of the settings that the caller gave.
  """
  enable_minibatching = said.get("enable_minibatching", False)
  name, stack = next(iter(stacks.items()))
  if embedding_variables is None:
    topology = _topology_of_plan(
        feature_specs,
        name,
        row_pointers[name],
        said.get("global_device_count"),
        enable_minibatching,
    )
  else:
    table = embedding_variables[name][0]
    topology = _topology_of_row_pointers(
        feature_specs,
        row_pointers[name],
        num_devices_of_table(stack, table),
        enable_minibatching,
    )
    for field in ("global_device_count", "num_sc_per_device"):
      found = getattr(topology, field)
      if said.get(field, found) != found:
        raise ValueError(
            f"Stack {name!r}: {field} is {said[field]}, but the shapes of table"
            f" {table.shape} and row pointers ({row_pointers[name]},) are those"
            f" of {found}. Preprocess, initialize and look up with the same"
            " numbers, inside shard_map when there are several devices."
        )
  return BufferSettings(
      **dict(said)
      | dict(
          global_device_count=topology.global_device_count,
          num_sc_per_device=topology.num_sc_per_device,
          limits=limits_of_specs(jax.tree.leaves(feature_specs)),
      )
  )


def limits_of_specs(
    features: Iterable[embedding_spec.FeatureSpec],
) -> tuple[tuple[str, PartitionLimits], ...]:
  """The limits that the stacks of features have now, for BufferSettings."""
  limits = {}  # for every batch: plain attributes
  for feature in features:
    stack = feature.table_spec.stacked_table_spec
    limits[stack.stack_name] = PartitionLimits(
        stack.max_ids_per_partition, stack.max_unique_ids_per_partition
    )
  return tuple(limits.items())


def _check_mesh(global_device_count: int) -> None:
  """Raises ValueError if a surrounding shard_map has other devices.

  The primitives exchange rows along an axis of its mesh, or along the axes that
  the caller named.
  """
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {
      name: mesh.shape[name]
      for name in mesh.manual_axes
      if mesh.shape[name] > 1
  }
  named = mesh_axis.named_axes()
  if named is None:
    possible = sizes.values()
  else:
    possible = [math.prod(mesh.shape[name] for name in named)]
  if sizes and global_device_count not in possible:
    raise ValueError(
        f"The tables are split for {global_device_count} device(s), and"
        f" shard_map has the mesh axes {sizes}"
        f"{'' if named is None else f', of which {named} split the rows'}."
        " Preprocess and initialize with"
        " the size of the axis that splits the tables as global_device_count."
    )


def num_devices_of_table(
    stack: embedding_spec.StackedTableSpec, table: jax.Array
) -> int:
  """Over how many devices a stack is split, one of which has `table`."""
  rows = table.shape[0]
  if rows == 0 or stack.stack_vocab_size % rows:
    raise ValueError(
        f"Stack {stack.stack_name!r}: a device's part of the table has {rows}"
        " rows, which does not divide the stack's"
        f" {stack.stack_vocab_size} rows. Pass the table that"
        " init_embedding_variables made for these feature specs."
    )
  return stack.stack_vocab_size // rows


def _topology_of_plan(
    feature_specs: Any,
    stack_name: str,
    num_row_pointers: int,
    global_device_count: int | None,
    enable_minibatching: bool,
) -> layout.Topology:
  """The topology that the specs were prepared for."""
  if global_device_count is not None:
    return _topology_of_row_pointers(
        feature_specs,
        num_row_pointers,
        global_device_count,
        enable_minibatching,
    )
  num_scs = planned_num_scs(feature_specs, "global_device_count")
  row_pointers_per_sc = layout.row_pointers_per_block(num_scs) * (
      constants.MAX_MINIBATCHES if enable_minibatching else 1
  )
  if enable_minibatching and num_row_pointers % row_pointers_per_sc:
    raise ValueError(
        f"Stack {stack_name!r}: the buffers have {num_row_pointers} row"
        f" pointers, expected a multiple of {row_pointers_per_sc}, those of"
        f" {constants.MAX_MINIBATCHES} minibatches. Pass global_device_count if"
        " they are for fewer, and enable_minibatching as in preprocessing."
    )
  num_sc_per_device = max(num_row_pointers // row_pointers_per_sc, 1)
  return layout.Topology(
      local_device_count=1,
      global_device_count=max(num_scs // num_sc_per_device, 1),
      num_sc_per_device=num_sc_per_device,
  )


def planned_num_scs(feature_specs: Any, argument: str) -> int:
  """The SparseCores that tables were prepared for.

  Args:
    feature_specs: the prepared specs.
    argument: what the caller can say instead, for the message.

  Raises:
    ValueError: if the plan does not say.
  """
  name, table = next(iter(_plan.get_table_specs(feature_specs).items()))
  num_scs = table.setting_in_stack.num_shards
  if num_scs is None:
    raise ValueError(
        f"Table {name!r} was not placed by stack_tables, auto_stack_tables or"
        " prepare_feature_specs_for_training, so the number of SparseCores is"
        f" not known. Pass {argument}."
    )
  return num_scs


def _topology_of_row_pointers(
    feature_specs: Any,
    num_row_pointers: int,
    global_device_count: int,
    enable_minibatching: bool,
) -> layout.Topology:
  table = next(iter(_plan.get_table_specs(feature_specs).values()))
  num_scs = table.setting_in_stack.num_shards
  if enable_minibatching and num_scs and num_scs % global_device_count == 0:
    # There may be row pointers for any number of minibatches.
    num_sc_per_device = num_scs // global_device_count
  else:
    num_sc_per_device = layout.num_sc_per_device_from_row_pointers(
        num_row_pointers, global_device_count, enable_minibatching
    )
  return layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )


def check_stack_names(expected: Mapping, **by_stack: Mapping) -> None:
  """Checks that mappings by stack name have the stacks of the feature specs.

  Raises:
    ValueError: naming the argument and the missing and unknown stacks.
  """
  for name, mapping in by_stack.items():
    if not isinstance(mapping, Mapping):
      raise ValueError(
          f"{name} must be a mapping from the names of stacks, which are"
          f" {sorted(expected)}, got {type(mapping).__name__}."
      )
    if set(mapping) != set(expected):
      raise ValueError(
          f"{name} must have one entry per stack of the feature specs, which"
          f" are {sorted(expected)}, got {sorted(mapping)}."
      )
