# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Shardings of arrays that are computed from other sharded arrays.

Where programs move rows between devices, XLA has to find out how: their arrays
are on meshes with axes of type Auto, whatever type the user's mesh has. The
devices are the same, so changing the type copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import math
from typing import Any

import jax


def fit(
    sharding: jax.sharding.Sharding, shape: Sequence[int]
) -> jax.sharding.Sharding:
  """`sharding` for arrays of another shape.

  JAX does not cut a dimension into unequal parts: one that does not divide is
  not cut at all.
  """
  if not isinstance(sharding, jax.sharding.NamedSharding):
    return sharding
  entries = [
      axes if size % num_parts(sharding.mesh, axes) == 0 else None
      for size, axes in zip(shape, sharding.spec)
  ]
  return jax.sharding.NamedSharding(
      sharding.mesh,
      jax.sharding.PartitionSpec(*entries),
      memory_kind=sharding.memory_kind,
  )


def num_parts(mesh: jax.sharding.Mesh, axes: Any) -> int:
  """Into how many parts an entry of a PartitionSpec cuts a dimension."""
  if axes is None:
    return 1
  axes = axes if isinstance(axes, tuple) else (axes,)
  return math.prod(mesh.shape[axis] for axis in axes)


def auto(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
  """The same sharding over axes of type Auto."""
  if not isinstance(sharding, jax.sharding.NamedSharding):
    return sharding
  mesh = sharding.mesh
  return jax.sharding.NamedSharding(
      jax.sharding.Mesh(mesh.devices, mesh.axis_names),
      sharding.spec,
      memory_kind=sharding.memory_kind,
  )


@contextlib.contextmanager
def auto_mesh(sharding: jax.sharding.Sharding) -> Iterator[None]:
  """For programs on arrays of auto(sharding), whatever mesh the user set."""
  context = jax.sharding.get_abstract_mesh()
  all_auto = all(
      kind == jax.sharding.AxisType.Auto for kind in context.axis_types
  )
  if all_auto or not isinstance(sharding, jax.sharding.NamedSharding):
    yield
    return
  with jax.set_mesh(auto(sharding).mesh):
    yield
