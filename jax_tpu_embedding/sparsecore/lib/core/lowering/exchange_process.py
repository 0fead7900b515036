# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One of several processes that look up and update together, for a test."""

from __future__ import annotations

import math

import jax
from jax_tpu_embedding.sparsecore.lib.core.lowering import mesh_axis
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

_NUM_SCS, _BATCH_PER_SC, _ROWS_PER_SHARD, _DIM = 8, 6, 24, 16
_LIMITS = dict(max_ids_per_partition=32, max_unique_ids_per_partition=24)


def largest_difference() -> float:
  """_largest_difference over one axis."""
  return _largest_difference((len(jax.devices()),), axes=("x",))


def largest_difference_over_one_of_two_axes() -> float:
  """Over the one that joins processes; along the other, work is repeated."""
  return _largest_difference((2, 2), axes=("x",))


def largest_difference_over_the_axis_of_a_process() -> float:
  """Over the other one."""
  return _largest_difference((2, 2), axes=("y",))


def largest_difference_over_two_axes() -> float:
  """Over both, the one within a process first."""
  return _largest_difference((2, 2), axes=("y", "x"))


def _largest_difference(
    mesh_shape: tuple[int, ...], axes: tuple[str, ...]
) -> float:
  """From one device, in activations, table and slot after two steps.

  Of this process's part.

  Args:
    mesh_shape: of all devices, those of a process last; its axes are x and y.
    axes: that split rows and samples, in this order.
  """
  coo = random_coo.random_coo(
      num_sc_per_device=_NUM_SCS,
      rows_per_shard=_ROWS_PER_SHARD,
      batch_size_per_sc=_BATCH_PER_SC,
      ids_per_sample=4,
  )
  rng = np.random.default_rng(0)
  shape = (_NUM_SCS * _ROWS_PER_SHARD, _DIM)
  table = np.float32(rng.normal(size=shape))
  slot = np.float32(rng.uniform(0.1, 1, shape))
  arguments = (*coo.operands[:4], table, slot)

  mesh = jax.sharding.Mesh(
      np.reshape(jax.devices(), mesh_shape), ("x", "y")[: len(mesh_shape)]
  )
  axis = jax.sharding.PartitionSpec(axes)
  sharding = jax.sharding.NamedSharding(mesh, axis)
  num_devices = math.prod(mesh.shape[name] for name in axes)

  def over_devices(*arguments):
    with mesh_axis.rows_are_split_over(axes):
      return _two_steps(num_devices)(*arguments)

  several = jax.jit(
      jax.shard_map(
          over_devices,
          mesh=mesh,
          in_specs=axis,
          out_specs=axis,
          check_vma=False,
      )
  )(
      *[
          jax.make_array_from_callback(x.shape, sharding, x.__getitem__)
          for x in arguments
      ]
  )
  one = jax.jit(_two_steps(1))(*arguments)
  return max(
      float(np.max(np.abs(shard.data - np.asarray(expected)[shard.index])))
      for values, expected in zip(several, one, strict=True)
      for shard in values.addressable_shards
  )


def _two_steps(num_devices: int):
  def step(coo, table, slot):
    activations = lookup.lookup_p.bind(
        *coo,
        np.int32(1),
        table,
        device_batch_size=_NUM_SCS * _BATCH_PER_SC // num_devices,
        **_LIMITS,
    )
    table, slot = update.UPDATE_PRIMITIVES["adagrad"].bind(
        *coo, np.int32(1), table, slot, activations, np.float32(0.1), **_LIMITS
    )
    return activations, table, slot

  def two_steps(*arguments):
    *coo, table, slot = arguments
    _, table, slot = step(coo, table, slot)
    return step(coo, table, slot)

  return two_steps
