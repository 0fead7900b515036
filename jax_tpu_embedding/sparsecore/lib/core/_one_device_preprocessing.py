# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Preprocessing for one device, in Python.

The promised function of input_preprocessing.py that is older than the converter
and has a narrower interface. It shares the stages of coo_entries.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import coo_entries
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
import numpy as np


def preprocess_sparse_dense_matmul_input(
    features: Sequence,
    features_weights: Sequence,
    mesh: jax.sharding.Mesh,
    *,
    max_ids_per_partition: int,
    max_unique_ids_per_partition: int,
    num_sc_per_device: int = -1,
    sharding_strategy: str = "MOD",
    enable_minibatching: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Returns row pointers, embedding ids, sample ids and gains of one device.

  There is no combiner: the gain of an id is its weight. Weights of equal ids in
  a sample add up in float64. Nothing is dropped.

  Args:
    features: ids of each sample: an array [samples, valency] or [samples], or a
      sequence of arrays. With `enable_minibatching` a list of these, one per
      minibatch, each with all samples.
    features_weights: shaped like `features`.
    mesh: the tables are sharded over its devices.
    max_ids_per_partition: limit of entries.
    max_unique_ids_per_partition: limit of distinct rows.
    num_sc_per_device: S; if not positive, that of the mesh's first device.
    sharding_strategy: "MOD" is the only one.
    enable_minibatching: if so, all minibatches of all SparseCores form one
      packed run of cells, and row pointers count from its begin.

  Raises:
    ValueError: if an argument is not as above, or a limit is exceeded.
    AssertionError: if minibatches come as one array.

  Source: docs/reference/buffer_format.md, "Layout" and "Minibatches".
  """
  if sharding_strategy != "MOD":
    raise ValueError(
        f"sharding_strategy must be 'MOD', got {sharding_strategy!r}."
    )
  if max_ids_per_partition <= 0:
    raise ValueError(
        f"max_ids_per_partition must be positive, got {max_ids_per_partition}."
    )
  if enable_minibatching:
    if isinstance(features, np.ndarray):
      # Not a TypeError, for the sake of callers that expect this one.
      raise AssertionError("Minibatches must be a list, got one array.")
    batches = list(zip(features, features_weights, strict=True))
  else:
    batches = [(features, features_weights)]
  if num_sc_per_device <= 0:
    num_sc_per_device = hardware.num_sparsecores_per_device(
        mesh.devices.flat[0]
    )
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=mesh.devices.size,
      num_sc_per_device=num_sc_per_device,
  )

  cells_per_batch = layout.max_coo_cells_per_device(
      max_ids_per_partition, topology
  )
  buffers = coo_entries.CooBuffers(
      cells_per_batch * len(batches), topology, num_minibatches=len(batches)
  )
  cell = 0
  for sc in range(num_sc_per_device):
    for m, (ids, weights) in enumerate(batches):
      partitions = coo_entries.merge(
          _weighted_entries(ids, weights, topology, sc), topology.num_scs
      )
      for entries in partitions:
        _check_limits(
            entries, max_ids_per_partition, max_unique_ids_per_partition
        )
      if enable_minibatching:
        cell, _ = buffers.write_block(
            sc * len(batches) + m, partitions, cell, buffers.gains.size
        )
      else:
        buffers.write_region(sc, partitions)
  return (
      jnp.asarray(buffers.row_pointers),
      jnp.asarray(buffers.embedding_ids),
      jnp.asarray(buffers.sample_ids),
      jnp.asarray(buffers.gains),
  )


def _weighted_entries(
    features: Sequence, weights: Sequence, topology: layout.Topology, sc: int
) -> Iterator[coo_entries.Entry]:
  """One entry per id of SparseCore `sc`, with its weight as gain."""
  if len(features) != len(weights):
    raise ValueError(
        f"features have {len(features)} samples and weights {len(weights)}."
    )
  if len(features) % topology.num_sc_per_device:
    raise ValueError(
        f"{len(features)} samples cannot be shared by"
        f" {topology.num_sc_per_device} SparseCores."
    )
  samples_per_sc = len(features) // topology.num_sc_per_device
  for r in range(samples_per_sc):
    i = sc * samples_per_sc + r
    ids, gains = np.atleast_1d(features[i]), np.atleast_1d(weights[i])
    if ids.ndim != 1 or ids.shape != gains.shape:
      raise ValueError(
          f"Sample {i} must have a row of ids and as many weights, got shapes"
          f" {ids.shape} and {gains.shape}."
      )
    for j, gain in zip(ids, gains):
      yield coo_entries.Entry(
          partition=int(j) % topology.num_scs,
          row=int(j) // topology.num_scs,
          sample=r,
          gain=np.float64(gain),
      )


def _check_limits(
    entries: list[coo_entries.Entry], max_ids: int, max_unique_ids: int
) -> None:
  unique_ids = len({entry.row for entry in entries})
  if len(entries) > max_ids:
    raise ValueError(
        f"Partition has too many ids: {len(entries)}, limit {max_ids}. Raise"
        " max_ids_per_partition."
    )
  if unique_ids > max_unique_ids:
    raise ValueError(
        f"Partition has too many unique ids: {unique_ids}, limit"
        f" {max_unique_ids}. Raise max_unique_ids_per_partition."
    )
