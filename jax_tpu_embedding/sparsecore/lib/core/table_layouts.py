# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where the rows of a table are: over devices, and in the memory of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import einops
import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core.tpu import table_format

MeshLike = jax.sharding.Mesh | jax.sharding.AbstractMesh

# For a table that has rows and columns; how many does not matter.
_SHAPE = (8, 8)


def embedding_table_format(
    mesh: MeshLike,
    partition_spec: jax.sharding.PartitionSpec,
    shape: Sequence[int] = _SHAPE,
) -> jax.sharding.Sharding | layout.Format:
  """The sharding of a table on `mesh`, with the layout that TPUs read."""
  return embedding_table_format_with_sharding(
      jax.sharding.NamedSharding(mesh, partition_spec), shape
  )


def embedding_table_format_with_sharding(
    sharding: jax.sharding.Sharding,
    shape: Sequence[int] = _SHAPE,
    dtype: Any = jnp.float32,
) -> jax.sharding.Sharding | layout.Format:
  """`sharding` on CPU and GPU, else with the layout that the TPU reads.

  Args:
    sharding: of the table or slot.
    shape: its shape. What has one number per row has a layout of its own. On
      TPUs without SparseCores, fewer than 128 columns take the memory of 128.
    dtype: its type: tiles have as many bytes, whatever it is.
  """
  device = _device_of(sharding)
  if device is None or not hardware.emulates_sparsecores(device):
    return table_format.table_format(sharding, shape, dtype)
  if hardware.is_tpu_without_sparsecores(device):
    without = table_format.tensor_core_layout(shape)
    if without is not None:
      return layout.Format(without, sharding)
  return sharding


def _device_of(
    sharding: jax.sharding.Sharding,
) -> hardware.DeviceLike | None:
  mesh = getattr(sharding, "mesh", None)
  if isinstance(mesh, jax.sharding.AbstractMesh):
    return getattr(mesh, "abstract_device", None)
  return next(iter(sharding.device_set))


def shard_emb_table(
    table: jax.typing.ArrayLike,
    *,
    num_devices: int,
    num_sc_per_device: int,
    sharding_strategy: str = "MOD",
) -> jax.Array:
  """MOD-shards rows: `[V, ...]` to `[num_devices, V / num_devices, ...]`.

  Row i goes to shard i mod N of N = num_devices * num_sc_per_device shards;
  device d holds shards d * num_sc_per_device and on, one after another.

  Raises:
    ValueError: if `sharding_strategy` is not "MOD".
    einops.EinopsError: if V is not divisible by N.
  """
  _check_strategy(sharding_strategy)
  return einops.rearrange(
      table,
      "(v c s) ... -> c (s v) ...",
      c=num_devices,
      s=num_sc_per_device,
  )


def unshard_emb_table(
    sharded_table: jax.typing.ArrayLike,
    num_sc_per_device: int,
    sharding_strategy: str = "MOD",
) -> jax.Array:
  """The inverse of shard_emb_table."""
  _check_strategy(sharding_strategy)
  return einops.rearrange(
      sharded_table, "c (s v) ... -> (v c s) ...", s=num_sc_per_device
  )


def _check_strategy(sharding_strategy: str) -> None:
  if sharding_strategy != "MOD":
    raise ValueError(
        f"Unsupported sharding strategy {sharding_strategy!r}. Use 'MOD'."
    )
