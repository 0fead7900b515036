# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What devices say to each other about rows, in plain jnp.

A device asks each owner for rows by their numbers in the owner's table. Numbers
and rows travel in blocks of one fixed capacity per pair of devices; -1 is no
row. What a device fetches has the place of its number, so the answer to a
request is a table, and the device's entries are entries of one SparseCore
in that table: the rules for one device do the rest.

A message is a list of G blocks, one for each device. These are the steps that
by_messages.py takes between collectives, in plain jnp, for any platform. A
platform may have a module of its own with the same functions, such as
cpu_messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import types
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import update_rules
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import corrupt_buffers
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import lookup_and_update
from jax_tpu_embedding.sparsecore.lib.core.lowering.reference import partitions

NO_ROW = -1

# One array for each device.
Blocks = Sequence[jax.Array]


class Entries(NamedTuple):
  """Entries of one SparseCore, in the order of the buffers."""

  row_pointers: jax.Array  # i32[8]
  places: jax.Array  # i32[B]: owner * C + place in the request
  samples: jax.Array  # i32[B], in the device's batch
  gains: jax.Array  # f32[B]
  has_failed: jax.Array  # bool[]: buffers are corrupt, or rows do not fit


def capacity(
    topology: layout.Topology,
    *,
    num_cells: int,
    rows_per_device: int,
    max_unique_ids_per_partition: int,
    enable_minibatching: bool,
) -> int:
  """C: the most rows that one device can ask of another.

  Each SparseCore asks for a row once. The converter keeps the distinct rows of
  a partition within the limit, in every minibatch.

  Args:
    topology: devices along the axis and SparseCores.
    num_cells: B.
    rows_per_device: of the table.
    max_unique_ids_per_partition: limit of the stack.
    enable_minibatching: which layout the buffers have.
  """
  num_scs = topology.num_sc_per_device
  num_minibatches = constants.MAX_MINIBATCHES if enable_minibatching else 1
  return min(
      num_cells,
      num_scs * rows_per_device,
      num_scs**2 * num_minibatches * max_unique_ids_per_partition,
  )


def pack(
    coo: tuple[jax.Array, ...],
    topology: layout.Topology,
    *,
    block_size: int,
    rows_per_device: int,
    batch_size: int,
    enable_minibatching: bool,
) -> tuple[Blocks, Entries]:
  """What to ask of every device, and the entries in terms of the answers.

  Every SparseCore asks for each of its rows once. If the rows of one owner
  exceed `block_size`, which the limits rule out, or the buffers are corrupt,
  all gains are NaN.

  Args:
    coo: row pointers, embedding ids, sample ids, gains, minibatch count.
    topology: devices along the axis and SparseCores.
    block_size: C.
    rows_per_device: of the table.
    batch_size: samples of the device.
    enable_minibatching: which layout the buffers have.
  """
  num_scs, num_sources = topology.num_scs, topology.num_sc_per_device
  num_devices = topology.global_device_count
  coo, is_valid = corrupt_buffers.nan_if_corrupt(
      coo,
      num_devices=num_devices,
      rows_per_device=rows_per_device,
      batch_size=batch_size,
      enable_minibatching=enable_minibatching,
  )
  row_pointers, embedding_ids, sample_ids, gains, num_minibatches = coo
  rows_per_shard = rows_per_device // num_sources
  batch_size_per_sc = batch_size // num_sources
  num_cells = embedding_ids.shape[0]
  is_entry, partition, source, target = partitions.read_partitions(
      row_pointers,
      num_minibatches,
      num_cells=num_cells,
      num_sources=num_sources,
      num_targets=num_scs,
      enable_minibatching=enable_minibatching,
  )
  # Equal ids are neighbours in a partition.
  is_first = is_entry & (
      jnp.ones(num_cells, bool)
      .at[1:]
      .set(
          (embedding_ids[1:] != embedding_ids[:-1])
          | (partition[1:] != partition[:-1])
      )
  )
  place_of_owner, most_rows = _place_by_owner(
      is_first,
      # Partitions are ordered by source, minibatch and target.
      partition // num_sources,
      num_groups=row_pointers.size // num_sources,
      num_devices=num_devices,
  )
  place = target // num_sources * block_size + place_of_owner
  no_place = num_devices * block_size
  has_place = is_first & (place_of_owner < block_size)
  requests = (
      jnp.full(no_place, NO_ROW, jnp.int32)
      .at[jnp.where(has_place, place, no_place)]
      .set(embedding_ids + target % num_sources * rows_per_shard, mode="drop")
  )
  has_failed = ~is_valid | (most_rows > block_size)
  entries = Entries(
      *_one_partition(
          is_entry,
          jnp.minimum(place, no_place - 1),
          sample_ids + source * batch_size_per_sc,
          jnp.where(has_failed, jnp.nan, gains),
      ),
      has_failed=has_failed,
  )
  return jnp.split(requests, num_devices), entries


def _place_by_owner(
    is_first: jax.Array,
    group: jax.Array,
    *,
    num_groups: int,
    num_devices: int,
) -> tuple[jax.Array, jax.Array]:
  """Counts rows per owner, in the order of the buffers.

  Args:
    is_first: bool[B], whether a cell is the first of its row.
    group: i32[B], ascending; that modulo `num_devices` is the owner.
    num_groups: an upper bound of them.
    num_devices: G.

  Returns:
    i32[B], the number of rows with the same owner before that of the cell; and
    i32[], the most rows that one owner has.
  """
  num_groups = layout.round_up(num_groups, num_devices)
  counts = jax.ops.segment_sum(
      is_first.astype(jnp.int32),
      group,
      num_segments=num_groups,
      indices_are_sorted=True,
  )
  before_group = jnp.cumsum(counts) - counts
  by_owner = counts.reshape(-1, num_devices)
  up_to_group = jnp.cumsum(by_owner, axis=0)
  of_owner_before_group = (up_to_group - by_owner).reshape(-1)
  place = jnp.cumsum(is_first, dtype=jnp.int32) - 1
  place += (of_owner_before_group - before_group)[group]
  return place, jnp.max(up_to_group)


def read_rows(table: jax.Array, wanted: Blocks) -> Blocks:
  """Answers requests, G times i32[C], with rows [C, D]; NaN for no row.

  Rows of words have no NaN: who asks for no row does not read the answer.
  """
  rows = jnp.concatenate(wanted)
  rows = jnp.where(rows == NO_ROW, table.shape[0], rows)
  is_float = jnp.issubdtype(table.dtype, jnp.floating)
  fetched = table.at[rows].get(
      mode="fill", fill_value=jnp.nan if is_float else 0
  )
  return jnp.split(fetched, len(wanted))


def look_up(
    entries: Entries,
    fetched: Blocks,
    params: dict[str, Any],
    on_device: types.ModuleType = lookup_and_update,
) -> jax.Array:
  """The activations, from G times [C, D], the rows that were asked for.

  Args:
    entries: from `pack`.
    fetched: the answers to the requests.
    params: of the lookup.
    on_device: module with the rules for one device.
  """
  *coo, has_failed = entries
  activations = on_device.lookup_on_one_device(
      (*coo, jnp.int32(1)),  # one minibatch
      jnp.concatenate(fetched),
      params | dict(enable_minibatching=False),
  )
  return jnp.where(has_failed, jnp.nan, activations)


def sum_gradients(
    entries: Entries,
    gradient: jax.Array,
    block_size: int,
    num_devices: int,
    on_device: types.ModuleType = lookup_and_update,
) -> Blocks:
  """The gradient of each row that was asked for, summed over its entries.

  Args:
    entries: from `pack`.
    gradient: f32[samples, D], of the activations.
    block_size: C.
    num_devices: G.
    on_device: module with the rules for one device.

  Returns:
    G times f32[C, D]. It is a lookup in `gradient`, of which places are samples,
    but for the order of sums, which is that of an update.
  """
  num_places = num_devices * block_size
  sums = on_device.lookup(
      entries.row_pointers,
      entries.samples,
      entries.places,
      entries.gains,
      jnp.int32(1),  # minibatch
      gradient,
      device_batch_size=num_places,
      num_sc_per_device=1,
      adds_in_blocks=True,
  )
  return jnp.split(sums, num_devices)


def step_rows(
    rule: update_rules.UpdateRule,
    operands: update_rules.UpdateOperands,
    wanted: Blocks,
    received: Blocks,
    params: dict[str, Any],
    on_device: types.ModuleType = lookup_and_update,
) -> Sequence[jax.Array]:
  """Table and slots, once gradients of rows are here.

  Args:
    rule: with its options.
    operands: of the update, of which COO buffers and gradient are not used.
    wanted: G times i32[C], rows of the table, or -1.
    received: G times f32[C, D], the gradient of each.
    params: of the update.
    on_device: module with the rules for one device.
  """
  columns = operands.gradient.shape[1:]
  return on_device.update_on_one_device(
      rule,
      operands._replace(
          coo=(*_entries_of(wanted), jnp.int32(1)),
          gradient=jnp.concatenate(received).reshape(-1, *columns),
      ),
      params | dict(enable_minibatching=False),
  )


def sum_rows(
    rows: Blocks,
    values: Blocks,
    num_results: int,
    on_device: types.ModuleType = lookup_and_update,
) -> tuple[jax.Array, jax.Array]:
  """The distinct rows, ascending, and the sum of the values of each.

  Args:
    rows: any number of i32[m]; PADDING_VALUE where there is none.
    values: for each f32[m, D], added in this order.
    num_results: at least the number of distinct rows.
    on_device: module with the rules for one device.

  Returns:
    i32[num_results], PADDING_VALUE at the end, and f32[num_results, D], zero
    there.
  """
  rows, values = jnp.concatenate(rows), jnp.concatenate(values)
  positions = jnp.arange(rows.size, dtype=jnp.int32)
  rows, positions = lax.sort((rows, positions), num_keys=1)
  is_first = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]])
  place = jnp.cumsum(is_first, dtype=jnp.int32) - 1
  num_entries = jnp.sum(rows != constants.PADDING_VALUE, dtype=jnp.int32)
  # The entries of one partition; a sum is a sample.
  padding = (0, -rows.size % constants.ALIGNMENT)
  sums = on_device.lookup(
      jnp.full(constants.MIN_ROW_POINTERS_PER_BLOCK, num_entries),
      jnp.pad(positions, padding),
      jnp.pad(place, padding),
      jnp.pad(jnp.ones(rows.size, jnp.float32), padding),
      jnp.int32(1),  # minibatch
      values,
      device_batch_size=num_results,
      num_sc_per_device=1,
  )
  distinct = jnp.full(num_results, constants.PADDING_VALUE, jnp.int32)
  return distinct.at[place].set(rows, mode="drop"), sums


def with_rules(on_device: types.ModuleType) -> types.SimpleNamespace:
  """The steps, by another module's rules for one device."""
  return types.SimpleNamespace(
      pack=pack,
      read_rows=read_rows,
      **{
          step.__name__: functools.partial(step, on_device=on_device)
          for step in (look_up, sum_gradients, step_rows, sum_rows)
      },
  )


def _entries_of(wanted: Blocks) -> tuple[jax.Array, ...]:
  """Received numbers, G times i32[C], as entries of one SparseCore.

  Returns:
    Row pointers i32[8], rows i32[G * C], samples i32[G * C] and gains
    f32[G * C], such that sample i is block and place of a number, and gains are
    1. So the rows that arrive in the same blocks are their gradients.
  """
  rows = jnp.concatenate(wanted)
  return _one_partition(
      rows != NO_ROW,
      rows,
      jnp.arange(rows.size, dtype=jnp.int32),
      jnp.ones(rows.size, jnp.float32),
  )


def _one_partition(
    is_kept: jax.Array, *values: jax.Array
) -> tuple[jax.Array, ...]:
  """Row pointers i32[8] of one partition, and in it the values that are kept."""
  size = layout.round_up(is_kept.size, constants.ALIGNMENT)
  place = jnp.cumsum(is_kept, dtype=jnp.int32) - 1
  place = jnp.where(is_kept, place, size)
  count = jnp.sum(is_kept, dtype=jnp.int32)
  return (
      jnp.full(constants.MIN_ROW_POINTERS_PER_BLOCK, count),
      *(jnp.zeros(size, x.dtype).at[place].set(x, mode="drop") for x in values),
  )
