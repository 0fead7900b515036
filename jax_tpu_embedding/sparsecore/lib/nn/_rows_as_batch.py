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
from jax_tpu_embedding.sparsecore.lib.nn import _inputs


def samples_per_sc(num_rows: int, topology: layout.Topology) -> int:
  """The samples of one SparseCore; the device has no fewer than `num_rows`."""
  return -(-num_rows // topology.num_sc_per_device)


def rows_as_batch(
    rows: jax.Array, rows_per_shard: int, topology: layout.Topology
) -> _inputs.DeviceBuffers:
  """Buffers in which sample i has the id of `rows[i]`, with gain 1.

  Args:
    rows: i32[n], in the tables of all devices, one after another, in any order;
      PADDING_VALUE makes a sample without ids. Rows that are none are left to
      the checks of the update.
    rows_per_shard: of the table.
    topology: devices and SparseCores. Samples are cut into equal parts for the
      SparseCores of the device, the last of them filled up.
  """
  num_sources, num_targets = topology.num_sc_per_device, topology.num_scs
  num_samples = samples_per_sc(rows.size, topology)
  rows = jnp.pad(
      rows,
      (0, num_samples * num_sources - rows.size),
      constant_values=constants.PADDING_VALUE,
  ).reshape(num_sources, num_samples)
  rows, samples = _sort_by_row(rows)

  # First and last shard have all that remains, so that no row goes unseen.
  ends_of_shards = jnp.arange(1, num_targets) * rows_per_shard
  ends_of_shards = jnp.append(ends_of_shards, constants.PADDING_VALUE)
  ends = jax.vmap(lambda x: jnp.searchsorted(x, ends_of_shards))(rows)
  begins = jnp.pad(ends[:, :-1], ((0, 0), (1, 0)))
  sizes = ends - begins
  cells = layout.round_up(sizes, constants.ALIGNMENT)
  starts = jnp.cumsum(cells, axis=1) - cells
  num_cells = layout.round_up(
      # Each partition that is not empty ends with at most 7 unused cells.
      num_samples + 7 * min(num_targets, num_samples),
      constants.ALIGNMENT,
  )

  target = jnp.clip(rows // rows_per_shard, 0, num_targets - 1)
  place = jnp.arange(num_samples) + jnp.take_along_axis(
      starts - begins, target, axis=1
  )
  place += jnp.arange(num_sources)[:, None] * num_cells
  is_row = rows != constants.PADDING_VALUE
  place = jnp.where(is_row, place, num_sources * num_cells)

  def spread(values):
    empty = jnp.full(
        num_sources * num_cells, constants.PADDING_VALUE, jnp.int32
    )
    return empty.at[place].set(values, mode="drop")

  row_pointers = jnp.pad(
      starts + sizes,
      ((0, 0), (0, layout.row_pointers_per_block(num_targets) - num_targets)),
      mode="edge",
  )
  row_pointers = row_pointers.at[:, num_targets:].set(
      layout.round_up(row_pointers[:, num_targets:], constants.ALIGNMENT)
  )
  return _inputs.DeviceBuffers(
      row_pointers=row_pointers.reshape(-1).astype(jnp.int32),
      embedding_ids=spread(rows - target * rows_per_shard),
      sample_ids=spread(samples),
      gains=jnp.ones(num_sources * num_cells, jnp.float32),
      num_minibatches=jnp.int32(1),
  )


def _sort_by_row(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The rows of each source, ascending, and the samples that they are of."""
  # The zeros say that samples vary over a mesh as rows do: check_vma wants it.
  samples = jnp.arange(rows.shape[1], dtype=jnp.int32) + 0 * rows
  is_sorted = jnp.all(rows[:, 1:] >= rows[:, :-1])
  # Gradients of rows come sorted; a sort is most of the work here.
  return lax.cond(
      is_sorted,
      lambda *both: both,
      lambda *both: tuple(lax.sort(both, dimension=1, num_keys=1)),
      rows,
      samples,
  )
