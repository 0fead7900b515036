# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One of several processes that look up and update together, for a test."""

from __future__ import annotations

import jax
from jax_tpu_embedding.sparsecore.lib.core.primitives import lookup
from jax_tpu_embedding.sparsecore.lib.core.primitives import random_coo
from jax_tpu_embedding.sparsecore.lib.core.primitives import update
import numpy as np

_NUM_SCS, _BATCH_PER_SC, _ROWS_PER_SHARD, _DIM = 8, 6, 24, 16
_LIMITS = dict(max_ids_per_partition=32, max_unique_ids_per_partition=24)


def largest_difference() -> float:
  """From one device, in activations, table and slot after two steps.

  Of this process's part.
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

  devices = jax.devices()
  mesh = jax.sharding.Mesh(devices, ("x",))
  axis = jax.sharding.PartitionSpec("x")
  sharding = jax.sharding.NamedSharding(mesh, axis)
  several = jax.jit(
      jax.shard_map(
          _two_steps(len(devices)),
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
