# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which cells of a device's COO buffers are entries, in plain jnp.

Source: docs/reference/buffer_format.md, "Layout" and "Minibatches".
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout


class Cells(NamedTuple):
  """One element for each cell of the buffers."""

  is_entry: jax.Array  # bool[B]
  partition: jax.Array  # i32[B], ascending; of no use where it is no entry
  source: jax.Array  # i32[B], the SparseCore that owns the sample
  target: jax.Array  # i32[B], the SparseCore that owns the row


def read_partitions(
    row_pointers: jax.Array,
    num_minibatches: jax.Array | int,
    *,
    num_cells: int,
    num_sources: int,
    num_targets: int,
    enable_minibatching: bool,
) -> Cells:
  """For each cell: is it an entry, and of which partition.

  Partitions follow each other in a region, ordered by source, minibatch and
  target, each from the end of the one before, rounded up. A source has a region
  of its own, unless there are minibatches.

  Args:
    row_pointers: i32[R].
    num_minibatches: i32[]; used with `enable_minibatching` only.
    num_cells: B.
    num_sources: SparseCores of the device.
    num_targets: SparseCores of all devices.
    enable_minibatching: which layout the buffers have.
  """
  starts, ends, region_size = _bounds(
      row_pointers,
      num_minibatches,
      num_cells=num_cells,
      num_sources=num_sources,
      num_targets=num_targets,
      enable_minibatching=enable_minibatching,
  )
  num_regions = starts.shape[0]
  num_minibatches = num_minibatches if enable_minibatching else 1
  # From here on positions count from the first cell of the device.
  origin = jnp.arange(num_regions, dtype=jnp.int32)[:, None] * region_size
  starts, ends = ((x + origin).reshape(-1) for x in (starts, ends))

  # A cell is in the last partition that starts at or before it.
  cells = jnp.arange(num_cells, dtype=jnp.int32)
  partition = jnp.searchsorted(starts, cells, side="right") - 1
  partition = partition.astype(jnp.int32)
  source = partition // (num_targets * num_minibatches)
  return Cells(
      is_entry=(cells < ends[partition]) & (source < num_sources),
      partition=partition,
      source=source,
      target=partition % num_targets,
  )


def are_valid(
    row_pointers: jax.Array, num_minibatches: jax.Array | int, **sizes: Any
) -> jax.Array:
  """bool[]: whether partitions end in their regions, and none before it starts.

  Nor can there be more minibatches than the buffers have room for, or none, or
  entries behind the last partition: buffers for more devices have those.

  Args:
    row_pointers: i32[R].
    num_minibatches: i32[]; used with `enable_minibatching` only.
    **sizes: those of read_partitions.
  """
  starts, ends, region_size = _bounds(row_pointers, num_minibatches, **sizes)
  pointers, _ = _blocks(row_pointers, num_minibatches, **sizes)
  num_targets = sizes["num_targets"]
  last_ends = layout.round_up(
      pointers[:, :, num_targets - 1 : num_targets], constants.ALIGNMENT
  )
  is_valid = jnp.all((starts <= ends) & (ends <= region_size)) & jnp.all(
      pointers[:, :, num_targets:] <= last_ends
  )
  if not sizes["enable_minibatching"]:
    return is_valid
  num_minibatches = jnp.asarray(num_minibatches)
  return (
      is_valid
      & (1 <= num_minibatches)
      & (num_minibatches <= constants.MAX_MINIBATCHES)
  )


def _bounds(
    row_pointers: jax.Array, num_minibatches: jax.Array | int, **sizes: Any
) -> tuple[jax.Array, jax.Array, int]:
  """First cells and ends of partitions i32[regions, partitions]; region size.

  They count from the first cell of the region. Partitions of minibatches that
  do not exist end where the region does.
  """
  pointers, region_size = _blocks(row_pointers, num_minibatches, **sizes)
  ends = pointers[:, :, : sizes["num_targets"]]
  ends = ends.reshape(ends.shape[0], -1)
  starts = layout.round_up(ends[:, :-1], constants.ALIGNMENT)
  starts = jnp.pad(jnp.minimum(starts, region_size), ((0, 0), (1, 0)))
  return starts, ends, region_size


def _blocks(
    row_pointers: jax.Array,
    num_minibatches: jax.Array | int,
    *,
    num_cells: int,
    num_sources: int,
    num_targets: int,
    enable_minibatching: bool,
) -> tuple[jax.Array, int]:
  """Row pointers i32[regions, blocks, max(num_targets, 8)]; region size.

  Those of minibatches that do not exist, of which nothing is known, are
  replaced by the end of the region.
  """
  num_regions = 1 if enable_minibatching else num_sources
  num_minibatches = num_minibatches if enable_minibatching else 1
  block = layout.row_pointers_per_block(num_targets)
  pointers = row_pointers.reshape(num_regions, -1, block)
  region_size = num_cells // num_regions
  num_used = num_sources * num_minibatches // num_regions
  is_used = jnp.arange(pointers.shape[1]) < num_used
  return jnp.where(is_used[:, None], pointers, region_size), region_size
