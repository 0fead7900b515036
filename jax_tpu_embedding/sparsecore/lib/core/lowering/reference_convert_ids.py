# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Raw ids to COO buffers in plain jnp: what is correct, on any platform.

jnp cannot raise inside a compiled program: an id outside of its table's
vocabulary gets a NaN gain, so that the activation shows it. The bytes are those
of the native converter but for the gains of "mean" and "sqrtn" with weights,
which may differ by a rounding: XLA multiplies by reciprocals, and has no
float64 for the sum of squares.

Source: docs/reference/buffer_format.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout


def cells_per_sc(ids_per_sc: int, num_scs: int) -> int:
  """Cells that hold any ids: each of the partitions wastes less than 8."""
  return (
      layout.round_up(ids_per_sc, constants.ALIGNMENT)
      + constants.ALIGNMENT * num_scs
  )


def convert_ids(
    *operands: jax.Array,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    feature_names: Sequence[str],
    row_offsets: Sequence[int],
    col_offsets: Sequence[int],
    col_shifts: Sequence[int],
    vocabulary_sizes: Sequence[int],
    has_weights: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Row pointers, embedding ids, sample ids and gains of one device.

  Args:
    *operands: ids i32[samples, valency] of each feature, ordered by row offset;
      then their weights f32[samples, valency], if `has_weights`.
    combiner: "sum", "mean" or "sqrtn".
    global_device_count: G, devices that the tables are sharded over.
    num_sc_per_device: S.
    feature_names: one per feature, as the following.
    row_offsets: first sample of the feature in the global stacked batch.
    col_offsets: first column of the table in its stack.
    col_shifts: rotation of the table's shards.
    vocabulary_sizes: ids are below it.
    has_weights: whether there are weights.
  """
  num_features = len(feature_names)
  num_scs = global_device_count * num_sc_per_device
  columns, samples, gains = [], [], []  # of each feature, [S, ids per core]
  for f in range(num_features):
    ids = operands[f]
    weights = operands[num_features + f] if has_weights else None
    is_id = (0 <= ids) & (ids < vocabulary_sizes[f])
    gain = jnp.where(is_id, _gains(ids.shape, weights, combiner), jnp.nan)
    ids = jnp.clip(ids, 0, vocabulary_sizes[f] - 1)
    shard = (ids + col_shifts[f]) % num_scs
    column = shard + (ids - ids % num_scs) + col_offsets[f]
    sample = row_offsets[f] // num_scs + jnp.arange(
        ids.shape[0] // num_sc_per_device, dtype=jnp.int32
    )
    sample = jnp.repeat(jnp.tile(sample, num_sc_per_device), ids.shape[1])
    for per_feature, values in (
        (columns, column),
        (samples, sample),
        (gains, gain),
    ):
      per_feature.append(values.reshape(num_sc_per_device, -1))

  def convert(columns, samples, gains):
    return _convert_on_one_core(columns, samples, gains, num_scs)

  buffers = jax.vmap(convert)(
      *(jnp.concatenate(x, axis=1) for x in (columns, samples, gains))
  )
  return tuple(buffer.reshape(-1) for buffer in buffers)


def _gains(
    shape: tuple[int, int], weights: jax.Array | None, combiner: str
) -> jax.Array:
  """f32[samples, valency]: what each id counts in its sample."""
  if weights is None:
    count = jnp.full(shape, shape[1], jnp.float32)
    if combiner == "sum":
      return jnp.ones(shape, jnp.float32)
    return 1 / (count if combiner == "mean" else jnp.sqrt(count))
  if combiner == "sum":
    return weights
  terms = weights if combiner == "mean" else weights * weights
  # One term after the other, as the native converter adds them.
  divisor, _ = lax.scan(
      lambda total, term: (total + term, None),
      jnp.zeros(shape[0], jnp.float32),
      terms.T,
  )
  if combiner == "sqrtn":
    divisor = jnp.sqrt(divisor)
  return weights / divisor[:, None]


def _convert_on_one_core(
    columns: jax.Array, samples: jax.Array, gains: jax.Array, num_scs: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """The region and the row pointers of one SparseCore, from [ids] each."""
  num_cells = cells_per_sc(columns.size, num_scs)
  # Stable, so that repeats stay in the order in which they occur.
  target, local_id, sample, gain = lax.sort(
      (columns % num_scs, columns // num_scs, samples, gains),
      num_keys=3,
      is_stable=True,
  )
  # Repeats of an id in a sample become one entry.
  is_first = jnp.zeros(columns.shape, bool).at[:1].set(True)
  for key in (target, local_id, sample):
    is_first = is_first.at[1:].set(is_first[1:] | (key[1:] != key[:-1]))
  entry = jnp.cumsum(is_first) - 1
  gain_of_entry = jax.ops.segment_sum(
      gain, entry, num_segments=columns.size, indices_are_sorted=True
  )

  count = jax.ops.segment_sum(
      is_first.astype(jnp.int32), target, num_segments=num_scs
  )
  padded = layout.round_up(count, constants.ALIGNMENT)
  start = jnp.cumsum(padded) - padded
  first_entry = jnp.cumsum(count) - count
  cell = start[target] + entry - first_entry[target]
  cell = jnp.where(is_first, cell, num_cells)  # beyond the buffer: dropped

  def write(values, padding):
    empty = jnp.full(num_cells, padding, values.dtype)
    return empty.at[cell].set(values, mode="drop")

  block = layout.row_pointers_per_block(num_scs)
  ends = jnp.full(block, jnp.sum(padded), jnp.int32)
  return (
      ends.at[:num_scs].set(start + count),
      write(local_id, constants.PADDING_VALUE),
      write(sample, constants.PADDING_VALUE),
      write(gain_of_entry[entry], jnp.nan),
  )
