# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which devices share a batch, and the mesh axes that split it over them."""

from __future__ import annotations

import math

import jax
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import mesh_axis
from jax_tpu_embedding.sparsecore.lib.nn.inputs import _buffers


def axes_of_batch(
    samples: _buffers.SampleIds, num_devices: int
) -> tuple[str, ...]:
  """The mesh axes of the surrounding shard_map that split the batch.

  Args:
    samples: of one device.
    num_devices: that share the batch.

  Raises:
    NotImplementedError: if there are several devices and no shard_map, or
      several axes may split the batch.
  """
  if num_devices == 1:
    return ()
  mesh = jax.sharding.get_abstract_mesh()
  axes = axes_that_may_split(samples.ids)
  if math.prod(mesh.shape[name] for name in axes) != num_devices:
    raise NotImplementedError(
        f"The batch is split over {num_devices} devices, and of the mesh axes"
        f" {dict(mesh.shape)} the ones that may split it are {list(axes)}. Call"
        " the update inside jax.shard_map over one axis with that many devices,"
        " or name all that split the batch, in order: with"
        " mesh_axis.rows_are_split_over(axes)."
    )
  return tuple(axes)


def num_devices_of_batch() -> int:
  """How many devices share a batch, where all that is known is the mesh.

  Raises:
    NotImplementedError: if several axes of the surrounding shard_map may split
      the batch.
  """
  mesh = jax.sharding.get_abstract_mesh()
  axes = mesh_axis.named_axes()
  if axes is None:
    axes = _axes_of_several_devices(mesh)
    if len(axes) > 1:
      raise NotImplementedError(
          "All tables have placement 'tensorcore', and their batch may be split"
          f" over any of the mesh axes {axes}. Name all that split it, in order:"
          " with mesh_axis.rows_are_split_over(axes)."
      )
  return math.prod(mesh.shape[name] for name in axes)


def axes_that_may_split(ids: jax.Array) -> list[str]:
  """Those that the caller has named, or over which ids may be split."""
  axes = mesh_axis.named_axes()
  if axes is not None:
    return axes
  axes = _axes_of_several_devices(jax.sharding.get_abstract_mesh())
  varying = jax_private.varies_over(jax.typeof(ids))
  return [name for name in axes if name in varying] if varying else axes


def _axes_of_several_devices(mesh: jax.sharding.AbstractMesh) -> list[str]:
  """Those that a surrounding shard_map splits."""
  return [
      name
      for name in mesh.axis_names
      if name in mesh.manual_axes and mesh.shape[name] > 1
  ]
