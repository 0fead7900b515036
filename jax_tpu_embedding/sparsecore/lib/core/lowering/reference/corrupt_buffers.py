# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What stands for corrupt COO buffers where a program cannot raise.

Without it their entries would be left out, and nobody would know.
kernels/exchange/messages.h does the same on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import partitions


def nan_if_corrupt(
    coo: Sequence[jax.Array],
    *,
    num_devices: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> tuple[Sequence[jax.Array], jax.Array]:
  """The buffers; if they are corrupt, some that are not, with NaN for gains.

  All rows that they name then become NaN. A number that is out of range stands
  for the nearest that is not; and if row pointers are wrong, all cells are
  entries for the first SparseCore.

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    num_devices: that share the tables.
    rows_per_device: of the table.
    batch_size: samples of the device.
    enable_minibatching: which layout the buffers have.

  Returns:
    Buffers, and bool[]: whether they are those that were given.
  """
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches = coo
  num_sc_per_device = layout.num_sc_per_device_from_row_pointers(
      row_pointers.size, num_devices, enable_minibatching
  )
  sizes = dict(
      num_cells=embedding_ids.size,
      num_sources=num_sc_per_device,
      num_targets=num_devices * num_sc_per_device,
      enable_minibatching=enable_minibatching,
  )
  has_partitions = partitions.are_valid(row_pointers, num_minibatches, **sizes)
  num_regions = 1 if enable_minibatching else num_sc_per_device
  row_pointers = jnp.where(
      has_partitions, row_pointers, embedding_ids.size // num_regions
  )
  num_minibatches = jnp.where(has_partitions, num_minibatches, 1)

  is_entry = partitions.read_partitions(
      row_pointers, num_minibatches, **sizes
  ).is_entry
  rows = jnp.clip(embedding_ids, 0, rows_per_device // num_sc_per_device - 1)
  samples = jnp.clip(sample_ids, 0, batch_size // num_sc_per_device - 1)
  is_wrong = is_entry & ((rows != embedding_ids) | (samples != sample_ids))
  is_valid = has_partitions & ~jnp.any(is_wrong)
  gains = jnp.where(is_valid, gains, jnp.nan)
  return (row_pointers, rows, samples, gains, num_minibatches), is_valid
