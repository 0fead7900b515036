# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One device's part of a preprocessed batch, read and checked.

What the buffers were made for is what they say, or what the caller and the
tables say. The shapes of buffers are compared with that; nothing is concluded
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
import math
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _feature_stacking
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np


class DeviceBuffers(NamedTuple):
  """The buffers of one stack on one device: operands of the primitives."""

  row_pointers: jax.Array  # i32[R]
  embedding_ids: jax.Array  # i32[B]
  sample_ids: jax.Array  # i32[B]
  gains: jax.Array  # f32[B]
  num_minibatches: jax.Array  # i32[]


class DeviceBatch(NamedTuple):
  """What a lookup or update of one device works on."""

  settings: _buffers.BufferSettings
  # Of the specs: those given, with the sizes of this batch.
  feature_specs: _tables.Nested[_tables.FeatureSpec]
  stacks: Mapping[str, _tables.StackedTableSpec]
  # By stack name; of replicated stacks the samples.
  buffers: Mapping[str, DeviceBuffers | _buffers.SampleIds]


def read(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    preprocessed_inputs: (
        _buffers.PreprocessedInput | _buffers.SparseDenseMatmulInput
    ),
    embedding_variables: Mapping[str, Any] | None = None,
    *,
    global_device_count: int | None,
    num_sc_per_device: int | None,
    enable_minibatching: bool | None,
    feature_stacking_strategy: str | None,
    num_samples: Mapping[str, int] | None = None,
) -> DeviceBatch:
  """The buffers of a device; callers, specs, tables and buffers must agree.

  Args:
    feature_specs: the prepared specs, any tree.
    preprocessed_inputs: one device's part of a preprocessed batch.
    embedding_variables: stack name -> (table f32[rows, D], slots), one device's
      shards; None if there are none.
    global_device_count: what the caller believes, or None, as all that follows.
    num_sc_per_device: SparseCores per device.
    enable_minibatching: whether the buffers have the layout of minibatches.
    feature_stacking_strategy: in any letter case.
    num_samples: stack name -> how many of one device have gradients; default:
      as many as the specs say.

  Raises:
    ValueError: if stacks are missing; the caller, the tables or the shapes
      contradict the settings, or the tables were prepared for other ones;
      nobody says for which devices the buffers are; or num_minibatches has more
      than one dimension.
  """
  if isinstance(preprocessed_inputs, _buffers.SparseDenseMatmulInput):
    warnings.warn(
        "SparseDenseMatmulInput as input of a lookup or update is deprecated:"
        " pass the PreprocessedInput.",
        DeprecationWarning,
        stacklevel=4,
    )
    preprocessed_inputs = _buffers.PreprocessedInput(preprocessed_inputs)
  stacks = _prepared.get_stacked_table_specs(feature_specs)
  check_stack_names(
      stacks,
      preprocessed_inputs={
          **preprocessed_inputs.lhs_row_pointers,
          **preprocessed_inputs.samples,
      },
  )
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
  settings = preprocessed_inputs.settings
  if settings is None:
    settings = _settings_of_caller(
        feature_specs, stacks, embedding_variables, **said
    )
  for name, value in said.items():
    if value != getattr(settings, name):
      raise ValueError(
          f"{name} is {value!r}, but the inputs were preprocessed with"
          f" {getattr(settings, name)!r}. Leave it out, or preprocess with"
          " the same."
      )
  buffers = _device_buffers(preprocessed_inputs, settings)
  for name, samples in preprocessed_inputs.samples.items():
    buffers[name] = _of_one_device(samples)
  if embedding_variables is None:
    _tables.check_planned_for(
        _prepared.get_table_specs(feature_specs).values(),
        settings.topology.num_scs,
    )
  else:
    check_tables(feature_specs, embedding_variables, settings.topology)
  feature_specs = _batch_sizes.of_settings(feature_specs, settings)
  stacks = _prepared.get_stacked_table_specs(feature_specs)
  num_samples = num_samples or {}
  for of_stack in settings.layouts:
    expected = of_stack.num_samples // settings.global_device_count
    found = num_samples.get(of_stack.stack_name, expected)
    if found != expected and of_stack.stack_name in stacks:
      raise ValueError(
          f"Stack {of_stack.stack_name!r}: the gradients have {found} samples,"
          f" and the inputs {expected} on each of"
          f" {settings.global_device_count} devices. They are of features"
          f" {[name for name, *_ in of_stack.features]}, laid out for these:"
          " pass gradients by feature, with perform_stacking=True."
      )
  for name, stack in stacks.items():
    expected = stack.total_sample_count // settings.global_device_count
    expected = num_samples.get(name, expected)
    _check_samples(stack, buffers[name], settings.global_device_count, expected)
  return DeviceBatch(settings, feature_specs, stacks, buffers)


def _of_one_device(samples: _buffers.SampleIds) -> _buffers.SampleIds:
  """The samples without a leading dimension of devices, if there is one."""
  valency = samples.ids.shape[-1]
  return _buffers.SampleIds(
      ids=jnp.asarray(samples.ids).reshape(-1, valency),
      gains=jnp.asarray(samples.gains).reshape(-1, valency),
      has_failed=jnp.asarray(samples.has_failed).reshape(-1),
      sample=samples.sample,
  )


def _check_samples(
    stack: _tables.StackedTableSpec,
    buffers: DeviceBuffers | _buffers.SampleIds,
    global_device_count: int,
    expected: int,
) -> None:
  """Raises ValueError unless inputs are those of the stack's placement.

  Args:
    stack: the spec.
    buffers: one device's part.
    global_device_count: for messages.
    expected: how many samples one device has.
  """
  has_samples = isinstance(buffers, _buffers.SampleIds)
  if has_samples != stack.is_replicated:
    found = "sample by sample" if has_samples else "in buffers"
    raise ValueError(
        f"Stack {stack.stack_name!r}: its placement is {stack.placement!r}, and"
        f" the inputs have its ids {found}. Preprocess with the same specs."
    )
  if not has_samples or buffers.sample is not None:
    return
  if buffers.ids.shape[0] != expected:
    raise ValueError(
        f"Stack {stack.stack_name!r}: the inputs have {buffers.ids.shape[0]}"
        f" samples, expected {expected} for one of {global_device_count}"
        " devices. Pass one device's part of the inputs, inside shard_map when"
        " there are several devices."
    )


def _settings_of_caller(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    stacks: Mapping[str, _tables.StackedTableSpec],
    embedding_variables: Mapping[str, Any] | None,
    *,
    global_device_count: int | None = None,
    num_sc_per_device: int | None = None,
    **others: Any,
) -> _buffers.BufferSettings:
  """The settings of buffers that do not have any.

  The plan of the tables has the number of all SparseCores, so that of devices
  is enough, or that of SparseCores per device. If the caller says neither, the
  tables do: one device's part has the rows of its stack divided by the devices.
  """
  if (
      global_device_count is None
      and num_sc_per_device is None
      and embedding_variables is not None
  ):
    # A table that each device has as a whole says nothing.
    for name, stack in stacks.items():
      if not stack.is_replicated:
        global_device_count = num_devices_of_table(
            stack, embedding_variables[name][0]
        )
        break
  if global_device_count is None and num_sc_per_device is None:
    raise ValueError(
        "The inputs do not say for which devices they were preprocessed: they"
        " were put together by hand, without `settings`. Pass"
        " global_device_count, or what preprocessing returned."
    )
  if global_device_count is None:
    global_device_count = _divide(
        planned_num_scs(feature_specs, "global_device_count"),
        num_sc_per_device=num_sc_per_device,
    )
  if num_sc_per_device is None:
    num_sc_per_device = _divide(
        planned_num_scs(feature_specs, "num_sc_per_device"),
        global_device_count=global_device_count,
    )
  return _buffers.BufferSettings(
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      limits=_prepared.limits_of_specs(jax.tree.leaves(feature_specs)),
      **others,
  )


def _divide(num_scs: int, **count: int) -> int:
  ((name, value),) = count.items()
  if value <= 0 or num_scs % value:
    raise ValueError(
        f"{name} is {value}, but the tables were prepared for {num_scs}"
        f" SparseCores, which are not {value} times as many as anything."
        " Preprocess, initialize and look up with the same numbers."
    )
  return num_scs // value


def _device_buffers(
    preprocessed_inputs: _buffers.PreprocessedInput,
    settings: _buffers.BufferSettings,
) -> dict[str, DeviceBuffers]:
  """The operands of the primitives for every stack."""
  num_minibatches = jnp.asarray(preprocessed_inputs.num_minibatches, jnp.int32)
  if num_minibatches.ndim > 1:
    raise ValueError(
        "num_minibatches must be a scalar or have one entry per device, got"
        f" shape {num_minibatches.shape}."
    )
  if num_minibatches.ndim == 1:
    num_minibatches = num_minibatches[0]
  arrays = preprocessed_inputs.sparse_dense_matmul_input
  expected = layout.row_pointers_per_device(
      settings.topology, settings.enable_minibatching
  )
  buffers = {}
  for name in arrays.lhs_row_pointers:
    row_pointers, *others = (_on_device(by_name[name]) for by_name in arrays)
    size = row_pointers.size
    if _is_of_fewer_minibatches(size, settings):
      # The primitives tell the number of SparseCores from the most that there
      # can be; what is beyond the minibatches is not read.
      row_pointers = jnp.pad(row_pointers, (0, expected - size))
    elif size != expected:
      raise ValueError(
          f"Stack {name!r}: the buffers have {size} row pointers,"
          f" expected {expected} for one of {settings.global_device_count}"
          f" devices with {settings.num_sc_per_device} SparseCores and"
          f" enable_minibatching={settings.enable_minibatching}. Pass one"
          " device's part of the inputs, inside shard_map when there are"
          " several devices, and enable_minibatching as in preprocessing."
      )
    buffers[name] = DeviceBuffers(row_pointers, *others, num_minibatches)
  return buffers


def _on_device(buffer: jax.Array | np.ndarray) -> jax.Array:
  # Not jnp.asarray, whose result jax_debug_nans looks at: cells without an entry
  # have NaN as their gain.
  return buffer if isinstance(buffer, jax.Array) else jax.device_put(buffer)


def _is_of_fewer_minibatches(
    num_row_pointers: int, settings: _buffers.BufferSettings
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
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    embedding_variables: Mapping[str, Any],
    topology: layout.Topology,
) -> None:
  """Checks that tables are those of one device of the topology.

  Raises:
    ValueError: if they have other rows, were prepared for another number of
      SparseCores, or a surrounding shard_map has other devices.
  """
  num_devices = topology.global_device_count
  for name, stack in _prepared.get_stacked_table_specs(feature_specs).items():
    table = embedding_variables[name][0]
    found = num_devices_of_table(stack, table)
    if stack.is_replicated:
      if found != 1:
        raise ValueError(
            f"Stack {name!r}: its placement is 'tensorcore', of which each"
            f" device has all {stack.stack_vocab_size} rows, and the table has"
            f" shape {table.shape}. Replicate it: P() for its table and slots"
            " in the in_specs and out_specs of jax.shard_map."
        )
    elif found != num_devices:
      raise ValueError(
          f"Stack {name!r}: the inputs are for {num_devices} devices, and a"
          f" table of shape {table.shape} is that of one of {found}."
          " Preprocess, initialize and look up with the same"
          " global_device_count, inside shard_map when there are several"
          " devices."
      )
  _tables.check_planned_for(
      _prepared.get_table_specs(feature_specs).values(),
      topology.num_scs,
  )
  _check_mesh(num_devices)


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
    stack: _tables.StackedTableSpec, table: jax.Array
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


def planned_num_scs(
    feature_specs: _tables.Nested[_tables.FeatureSpec], argument: str
) -> int:
  """The SparseCores that tables were prepared for.

  Args:
    feature_specs: the prepared specs.
    argument: what the caller can say instead, for the message.

  Raises:
    ValueError: if the plan does not say.
  """
  tables = [f.table_spec for f in _prepared.split_features(feature_specs)]
  if not tables:
    raise ValueError(
        "All tables have placement 'tensorcore', whose plan is the same for any"
        f" number of SparseCores. Pass {argument}."
    )
  num_scs = tables[0].setting_in_stack.num_shards
  if num_scs is None:
    name = tables[0].name
    raise ValueError(
        f"Table {name!r} was not placed by stack_tables, auto_stack_tables or"
        " prepare_feature_specs_for_training, so the number of SparseCores is"
        f" not known. Pass {argument}."
    )
  return num_scs


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
