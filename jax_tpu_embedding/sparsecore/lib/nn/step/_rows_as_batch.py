# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows as a batch with one id per sample, in the buffers of one device.

An update of this batch, whose activation gradients are the gradients of the
rows, steps each row once. Buffers are made inside the program, in plain jnp.

Source: docs/reference/buffer_format.md, "Layout".
"""

from __future__ import annotations

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn.step import _device_batch


def samples_per_sc(num_rows: int, topology: layout.Topology) -> int:
  """The samples of one SparseCore; the device has no fewer than `num_rows`."""
  return -(-num_rows // topology.num_sc_per_device)


def rows_per_minibatch(rows_per_shard: int, enable_minibatching: bool) -> int:
  """The most distinct rows that a partition of a minibatch has."""
  return -(-rows_per_shard // _num_minibatches(enable_minibatching))


def rows_as_batch(
    rows: jax.Array,
    rows_per_shard: int,
    topology: layout.Topology,
    enable_minibatching: bool = False,
) -> _device_batch.DeviceBuffers:
  """Buffers in which sample i has the id of `rows[i]`, with gain 1.

  Args:
    rows: i32[n], in the tables of all devices, one after another, in any order;
      PADDING_VALUE makes a sample without ids. Rows that are none are left to
      the checks of the update.
    rows_per_shard: of the table.
    topology: devices and SparseCores. Samples are cut into equal parts for the
      SparseCores of the device, the last of them filled up.
    enable_minibatching: whether to cut each shard into ranges of rows, a
      minibatch for each. A row is in one of them only, on every device.
  """
  num_sources, num_targets = topology.num_sc_per_device, topology.num_scs
  num_samples = samples_per_sc(rows.size, topology)
  rows = jnp.pad(
      rows,
      (0, num_samples * num_sources - rows.size),
      constant_values=constants.PADDING_VALUE,
  ).reshape(num_sources, num_samples)

  # First and last have all that remains, so that no row goes unseen.
  target = jnp.clip(rows // rows_per_shard, 0, num_targets - 1)
  ids = rows - target * rows_per_shard
  num_minibatches = _num_minibatches(enable_minibatching)
  minibatch = jnp.clip(
      ids // rows_per_minibatch(rows_per_shard, enable_minibatching),
      0,
      num_minibatches - 1,
  )
  num_partitions = num_minibatches * num_targets
  partition = jnp.where(
      rows == constants.PADDING_VALUE,
      num_partitions,
      minibatch * num_targets + target,
  )
  partition, ids, samples = _sort(partition, ids)

  ends = jax.vmap(
      lambda x: jnp.searchsorted(x, jnp.arange(num_partitions), side="right")
  )(partition)
  begins = jnp.pad(ends[:, :-1], ((0, 0), (1, 0)))
  sizes = ends - begins
  # Pointers count from the region of the source, or of all with minibatches.
  num_regions = 1 if enable_minibatching else num_sources
  cells = layout.round_up(sizes, constants.ALIGNMENT).reshape(num_regions, -1)
  starts = (jnp.cumsum(cells, axis=1) - cells).reshape(sizes.shape)
  num_cells = num_sources * layout.round_up(
      # Each partition that is not empty ends with at most 7 unused cells.
      num_samples + 7 * min(num_partitions, num_samples),
      constants.ALIGNMENT,
  )

  origin = jnp.arange(num_sources)[:, None] * (num_cells // num_sources)
  place = jnp.arange(num_samples) + jnp.take_along_axis(
      starts - begins + (0 if enable_minibatching else origin),
      jnp.minimum(partition, num_partitions - 1),
      axis=1,
  )
  place = jnp.where(partition < num_partitions, place, num_cells)

  def spread(values):
    empty = jnp.full(num_cells, constants.PADDING_VALUE, jnp.int32)
    return empty.at[place].set(values, mode="drop")

  row_pointers = jnp.pad(
      (starts + sizes).reshape(num_sources, num_minibatches, num_targets),
      (
          (0, 0),
          (0, 0),
          (0, layout.row_pointers_per_block(num_targets) - num_targets),
      ),
      mode="edge",
  )
  row_pointers = row_pointers.at[:, :, num_targets:].set(
      layout.round_up(row_pointers[:, :, num_targets:], constants.ALIGNMENT)
  )
  return _device_batch.DeviceBuffers(
      row_pointers=row_pointers.reshape(-1).astype(jnp.int32),
      embedding_ids=spread(ids),
      sample_ids=spread(samples),
      gains=jnp.ones(num_cells, jnp.float32),
      num_minibatches=jnp.int32(num_minibatches),
  )


def _num_minibatches(enable_minibatching: bool) -> int:
  return constants.MAX_MINIBATCHES if enable_minibatching else 1


def _sort(
    partition: jax.Array, ids: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Those of each source by partition and id, and the samples they are of."""
  # The zeros say that samples vary over a mesh as rows do: check_vma wants it.
  samples = jnp.arange(ids.shape[1], dtype=jnp.int32) + 0 * ids
  steps = jnp.diff(partition, axis=1)
  is_sorted = jnp.all(
      (steps > 0) | ((steps == 0) & (ids[:, 1:] >= ids[:, :-1]))
  )
  # Gradients of rows come sorted; a sort is most of the work here.
  return lax.cond(
      is_sorted,
      lambda *all: all,
      lambda *all: tuple(lax.sort(all, dimension=1, num_keys=2)),
      partition,
      ids,
      samples,
  )
