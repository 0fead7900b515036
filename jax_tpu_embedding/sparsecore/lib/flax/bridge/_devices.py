# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which devices and SparseCores a layer has its tables on."""

from __future__ import annotations

from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core.primitives import utils
from jax_tpu_embedding.sparsecore.lib.flax.bridge import _lookup_config
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _batch_sizes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _partial_shapes
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _structure
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

DEFAULT_AXIS = "sparsecore_sharding"

ShardingAxis = str | tuple[str, ...]


def resolve(
    mesh: jax.sharding.Mesh | None, sharding_axis: ShardingAxis
) -> tuple[jax.sharding.Mesh, ShardingAxis, bool]:
  """The mesh and axis to split tables over, where not all was given.

  And whether the caller chose the mesh, here or with jax.set_mesh.

  Args:
    mesh: None: that of jax.set_mesh, or else one axis over all devices.
    sharding_axis: DEFAULT_AXIS, if the mesh has no axis of this name, stands
      for all axes of the mesh.

  Raises:
    TypeError: if they are something else.
  """
  axes = _lookup_config.as_axes(sharding_axis)
  if not isinstance(mesh, jax.sharding.Mesh | None):
    raise TypeError(
        f"mesh must be a jax.sharding.Mesh or None, got {mesh!r}. Pass"
        " jax.make_mesh((num_devices,), (sharding_axis,))."
    )
  is_mesh_chosen = True
  if mesh is None:
    mesh = jax_private.concrete_mesh()
    if mesh is None or mesh.empty:
      name = axes[0] if len(axes) == 1 else DEFAULT_AXIS
      mesh = jax.sharding.Mesh(jax.devices(), (name,))
      is_mesh_chosen = False
  if sharding_axis == DEFAULT_AXIS and DEFAULT_AXIS not in mesh.shape:
    axes = tuple(mesh.axis_names)
    sharding_axis = axes[0] if len(axes) == 1 else axes
  return mesh, sharding_axis, is_mesh_chosen


def on_every_device(
    tree: Any,
    mesh: jax.sharding.Mesh | None = None,
    sharding_axis: ShardingAxis = DEFAULT_AXIS,
) -> Any:
  """Dense parameters and the like where the results of a train step are.

  That is on all devices that have tables. What is elsewhere at first has the
  step compiled a second time, for where its own results are.

  Args:
    tree: of arrays. Nothing is mutated.
    mesh: of the layer; default: as there.
    sharding_axis: of the layer.

  Returns:
    A tree of the same arrays, on one device or replicated over several.
  """
  mesh, *_ = resolve(mesh, sharding_axis)
  if mesh.size == 1:
    return jax.device_put(tree, mesh.devices.item())
  return jax.device_put(
      tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  )


def lookup_config(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    mesh: jax.sharding.Mesh | None,
    sharding_axis: ShardingAxis,
    num_sc_per_device: int,
    ids: Any | None = None,
    *,
    enable_minibatching: bool = False,
    **options: Any,
) -> _lookup_config.LookupConfig:
  """The config of a layer whose specs are prepared here if they are not yet.

  Args:
    feature_specs: any tree. Tables that are in no stack get one, in place.
    mesh: see `resolve`.
    sharding_axis: see `resolve`.
    num_sc_per_device: if not positive, that of the hardware; where SparseCores
      are emulated, as many as the specs were prepared for, if they were.
    ids: raw ids of all features, which tell the sizes of the batch; see
      _partial_shapes.complete. None: inputs are preprocessed, or there are
      none.
    enable_minibatching: whether preprocessing may split a batch. Raw ids are
      converted to one, whatever their number.
    **options: other fields.

  Raises:
    ValueError: if there are no features, or the specs were prepared for other
      devices, or do not fit the ids.
    TypeError: if an argument is something else.
    NotImplementedError: inside of jax.shard_map, over several devices.
  """
  if not _tables.features_of(feature_specs):
    raise ValueError(
        f"feature_specs must have a feature to look up, got {feature_specs!r}."
    )
  utils.ensure_integer(num_sc_per_device, "num_sc_per_device")
  mesh, sharding_axis, is_mesh_chosen = resolve(mesh, sharding_axis)
  manual_axes = jax.sharding.get_abstract_mesh().manual_axes
  if manual_axes and mesh.size > 1:
    raise NotImplementedError(
        "The layer is called inside of jax.shard_map over the mesh axes"
        f" {sorted(manual_axes)}, and runs over its {mesh.size} devices itself."
        " Call it outside, with global arrays; or inside, call what works on"
        " one device's part: embedding.convert_ids, tpu_sparse_dense_matmul and"
        " tpu_sparse_dense_matmul_grad."
    )
  num_devices = _lookup_config.num_devices_along(mesh, sharding_axis)
  if num_sc_per_device <= 0:
    device = mesh.devices.flat[0]
    num_sc_per_device = hardware.num_sparsecores_per_device(device)
    if hardware.emulates_sparsecores(device):
      planned = _num_planned_shards(feature_specs)
      if planned and planned % num_devices == 0:
        num_sc_per_device = planned // num_devices
  feature_specs = _partial_shapes.complete(
      feature_specs, ids, num_devices * num_sc_per_device
  )
  embedding.prepare_feature_specs_for_training(
      feature_specs, num_devices, num_sc_per_device
  )
  if ids is not None:
    # The ids of a layer are converted for this layer alone, so that features
    # of the stacks that are looked up elsewhere need no room.
    features = jax.tree.leaves(feature_specs)
    batches = _batch_sizes.of_ids(
        _structure.flatten_like(
            ids, feature_specs, "features", "feature_specs"
        ),
        features,
        num_devices,
        num_devices,
    )
    layouts = _batch_sizes.layouts(
        features,
        batches,
        num_devices * num_sc_per_device,
        keeps_places=False,
    )
    feature_specs = _batch_sizes.lay_out(feature_specs, batches, layouts)
  return _lookup_config.LookupConfig(
      feature_specs=feature_specs,
      mesh=mesh,
      sharding_axis=sharding_axis,
      num_sc_per_device=num_sc_per_device,
      commits=is_mesh_chosen or mesh.size > 1,
      enable_minibatching=enable_minibatching and ids is None,
      **options,
  )


def _num_planned_shards(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> int | None:
  """SparseCores that the first table that is split was prepared for."""
  for feature in jax.tree.leaves(feature_specs):
    table = feature.table_spec
    if table.is_stacked() and not table.is_replicated:
      return feature.table_spec.setting_in_stack.num_shards
  return None
