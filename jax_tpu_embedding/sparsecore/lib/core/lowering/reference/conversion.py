# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Raw ids to COO buffers in plain jnp: what is correct, on any platform.

The bytes are those of the native converter (any NaN is as good as another).
jnp cannot raise inside a compiled program; what the native converter calls an
error makes gains NaN, so that the activations show it:

  id outside of its table        the gain of that id
  weight that is not finite      the gains of the sample (with combiner "sum",
                                 of that id)
  row_splits that descend, or    the gains of the feature; its values are shared
  lead beyond the values         out evenly among its samples

Stages: each id becomes an occurrence; a sort by the SparseCore that reads,
partition, row and occurrence keeps samples, and repeats of an id in a sample,
in order; repeats become one entry; entries get their cells.

Source: docs/reference/buffer_format.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import raw_ids
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import float32_arithmetic
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import left_to_right
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import occurrences


def convert_ids(
    *operands: jax.Array,
    combiner: str,
    global_device_count: int,
    num_sc_per_device: int,
    features: Sequence[raw_ids.Feature],
    feature_stacking_strategy: str,
    keeps_errors: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Row pointers, embedding ids, sample ids and gains of one device.

  Args:
    *operands: those of each feature, as raw_ids.Operands, in order of features.
    combiner: one of raw_ids.COMBINERS.
    global_device_count: G, devices that the tables are sharded over.
    num_sc_per_device: S.
    features: by row offset.
    feature_stacking_strategy: one of raw_ids.FEATURE_STACKING_STRATEGIES.
    keeps_errors: whether row pointers say that there was an error: they are
      constants.FAILED_CONVERSION, then zeros.
  """
  topology = layout.Topology(
      local_device_count=1,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  grouped = raw_ids.group_operands(features, operands)
  places = raw_ids.sample_places(
      features, grouped, topology, feature_stacking_strategy
  )
  # The same program, and the same bits, whether or not the caller enables them.
  with jax.enable_x64(True):
    parts, are_wrong = zip(
        *(
            occurrences.occurrences(*of_feature, combiner, topology)
            for of_feature in zip(features, grouped, places)
        )
    )
    rows_per_shard = 1 + max(raw_ids.last_row(f, topology) for f in features)
    entries, is_entry = _merge(_sort(parts, rows_per_shard, topology), topology)
    cells_per_sc = raw_ids.cells_per_sc(grouped, places, topology)
    row_pointers, *cells = _write(entries, is_entry, cells_per_sc, topology)
    if keeps_errors:
      failed = (
          jnp.zeros_like(row_pointers).at[0].set(constants.FAILED_CONVERSION)
      )
      row_pointers = jnp.where(
          jnp.any(jnp.stack(are_wrong)), failed, row_pointers
      )
    return row_pointers, *cells


class _Elements(NamedTuple):
  """Sorted occurrences; after them, one that is padding."""

  block: jax.Array  # i32; SparseCore * N + partition; S * N if not kept
  row: jax.Array  # i32
  sample: jax.Array  # i32
  gain: jax.Array  # f32


def _sort(
    parts: Sequence[occurrences.Occurrences],
    rows_per_shard: int,
    topology: layout.Topology,
) -> _Elements:
  """All occurrences by SparseCore, partition and row; those not kept last."""
  num_blocks = topology.num_sc_per_device * topology.num_scs
  padding = occurrences.Occurrences(
      is_kept=False,
      sc=0,
      partition=0,
      row=constants.PADDING_VALUE,
      sample=constants.PADDING_VALUE,
      gain=0,  # not NaN as on hosts, so that jax_debug_nans finds others
  )
  every = occurrences.Occurrences(
      *(
          jnp.concatenate([*arrays, jnp.full_like(arrays[0], value, shape=1)])
          for *arrays, value in zip(*parts, padding)
      )
  )
  block = every.sc * topology.num_scs + every.partition
  block = jnp.where(every.is_kept, block, num_blocks)
  # One unique key sorts several times as fast as keys with values do: block,
  # row and, in the low bits, position.
  num_keys = (num_blocks + 1) * rows_per_shard
  position_bits = every.row.size.bit_length()
  if num_keys.bit_length() + position_bits > 64:
    raise NotImplementedError(
        f"{every.row.size} ids and {num_keys} rows of a stack are more than can"
        " be sorted together. Use smaller batches."
    )
  position = lax.iota(jnp.uint64, every.row.size)
  row = jnp.where(every.is_kept, every.row, 0).astype(jnp.uint64)
  key = block.astype(jnp.uint64) * rows_per_shard + row
  key = lax.sort(key << position_bits | position, is_stable=False)
  # Positions ascend, so the padding is behind all that is not kept.
  order = (key & (2**position_bits - 1)).astype(jnp.int32)
  return _Elements(
      block=block[order],
      row=every.row[order],
      sample=every.sample[order],
      gain=every.gain[order],
  )


def _merge(
    elements: _Elements, topology: layout.Topology
) -> tuple[_Elements, jax.Array]:
  """Adds the gains of repeats to the first one; which elements are entries."""
  num_blocks = topology.num_sc_per_device * topology.num_scs
  is_kept = elements.block < num_blocks
  is_first = ~is_kept
  for key in (elements.block, elements.row, elements.sample):
    is_first |= key != jnp.roll(key, 1)
  is_first = is_first.at[:1].set(True)
  gain = left_to_right.fold_runs(
      float32_arithmetic.add, elements.gain, elements.gain, is_first
  )
  return elements._replace(gain=gain), is_first & is_kept


def _write(
    entries: _Elements,
    is_entry: jax.Array,
    cells_per_sc: int,
    topology: layout.Topology,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """The buffers with every entry in its cell."""
  num_sources, num_targets = topology.num_sc_per_device, topology.num_scs
  num_blocks = num_sources * num_targets
  block_begins = jnp.searchsorted(
      entries.block, lax.iota(jnp.int32, num_blocks + 1)
  )
  entries_before = jnp.cumsum(is_entry, dtype=jnp.int32) - is_entry
  first_entry = entries_before[block_begins]
  count = jnp.diff(first_entry).reshape(num_sources, num_targets)
  padded = layout.round_up(count, constants.ALIGNMENT)
  padded_end = jnp.cumsum(padded, axis=1, dtype=jnp.int32)
  begin = padded_end - padded  # of a partition in its region

  region = lax.iota(jnp.int32, num_sources)[:, None] * cells_per_sc
  cell_of_first = (region + begin).reshape(-1) - first_entry[:-1]
  cell = cell_of_first[jnp.minimum(entries.block, num_blocks - 1)]
  # What is no entry goes beyond the buffer, and is not written.
  num_cells = num_sources * cells_per_sc
  position = lax.iota(jnp.int32, is_entry.size)
  cell = jnp.where(is_entry, cell + entries_before, num_cells + position)
  padding = is_entry.size - 1  # the last element
  source = jnp.full_like(position, padding, shape=num_cells)
  source = source.at[cell].set(position, mode="drop", unique_indices=True)

  block_size = layout.row_pointers_per_block(num_targets)
  row_pointers = jnp.concatenate(
      [
          begin + count,
          jnp.repeat(padded_end[:, -1:], block_size - num_targets, axis=1),
      ],
      axis=1,
  )
  return (
      row_pointers.reshape(-1),
      entries.row[source],
      entries.sample[source],
      entries.gain[source],
  )
