# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rows in a stack on devices, read and written where they are.

Row i of a table is in shard (i + rotation) mod N, at local row i div N. Devices
cut the local rows that a block needs out of their shards and put those of all
their shards in order, and the host puts together what several devices have; and
the other way round. Nothing as large as a table is made, and a jax.Ref is
changed in place.

With several processes the devices exchange what they cut, so that each gets
whole blocks: a round is one block per device, in pieces if it is large, which the
host puts together. That is a collective operation: all processes read the same
variables in the same order, each on one thread. Writing needs none: each process
has all blocks, and takes its shards' rows.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any

import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
import numpy as np

PartitionSpec = jax.sharding.PartitionSpec

# Of what several devices cut at a time: a large block in three pieces, one after
# the other, and a small one whole. On CPU, each thread of XLA has a heap of
# malloc's, which keeps what a program took there: with whole blocks 50 MiB more.
# More pieces take more time, as a program and an exchange do.
_PIECE_BYTES = 3 * 2**19


@dataclasses.dataclass(kw_only=True)
class Stack:
  """A variable of a stack: the table, or a slot.

  Attributes:
    value: an array or a jax.Ref of [num_rows, D'], or of [devices, num_rows /
      devices, D'], sharded by rows or on one device. A write to an array
      consumes it, and this is then its successor.
    placement: of the stack, with one column for a slot that has one.
  """

  value: Any
  placement: _placement.StackPlacement


class StackRows:
  """The rows of one table in one variable of a stack: a source and a sink.

  Args:
    stack: the variable.
    table: one of the tables in its placement.
    buffers: those of several tables may share them.
  """

  def __init__(
      self,
      stack: Stack,
      table: _placement.TablePlacement,
      buffers: _row_blocks.Buffers | None = None,
  ):
    self._stack = stack
    self.rows = table.vocabulary_size
    self.columns = table.embedding_dim
    self.dtype = np.dtype(stack.value.dtype)
    self.block_rows = _row_blocks.rows_per_block(
        self.rows, self.columns * self.dtype.itemsize, _row_blocks.BLOCK_BYTES
    )
    self._placement = stack.placement
    self._table = table
    self._buffers = buffers or _row_blocks.Buffers()
    sharding = stack.value.sharding
    self._sharding = (
        sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
    )

  def blocks(
      self, ranges: Sequence[_row_blocks.Range]
  ) -> Iterator[tuple[int, np.ndarray]]:
    height = self._height(ranges)
    axes = self._axes()
    parts = self._num_parts()
    group = len(self.turns)
    piece_height = height
    if parts > 1:
      row_bytes = self.columns * self.dtype.itemsize
      most = max(1, _PIECE_BYTES // (self._placement.num_shards * row_bytes))
      piece_height = -(-height // -(-height // most))
    program = _cut_program(
        self._placement.num_shards,
        piece_height,
        self.columns,
        group,
        self._sharding and self._sharding.mesh,
        axes,
        self._stack.value.ndim,
    )

    def begin(of_round, place):
      starts = [self._local_row(first, height) + place for first, _ in of_round]
      starts += [0] * (group - len(starts))
      offset = self._table.row_offset_in_shard
      return program(
          self._stack.value, np.array(starts, np.int32) + np.int32(offset)
      )

    rounds = [ranges[i : i + group] for i in range(0, len(ranges), group)]
    # The last piece has rows of the one before if they are not of equal size.
    places = [
        min(place, height - piece_height)
        for place in range(0, height, piece_height)
    ]
    steps = list(itertools.product(rounds, places))
    # Transfers of a piece begin before the one before is done with.
    begun = collections.deque()
    blocks = {}
    for i, (of_round, place) in enumerate(steps):
      for upcoming in steps[i + len(begun) : i + 2]:
        begun.append(begin(*upcoming))
      self._put(begun.popleft(), place, height, len(of_round), blocks)
      if place == places[-1]:
        for block in sorted(blocks):
          rows = blocks.pop(block)
          first, end = of_round[block]
          skip = self._local_row(first, height) * self._placement.num_shards
          rows = rows.reshape(-1, self.columns)
          yield first, rows[first - skip : end - skip]
          del rows

  def _put(
      self,
      of_devices: Sequence[jax.Array],
      place: int,
      height: int,
      num_blocks: int,
      blocks: dict[int, np.ndarray],
  ) -> None:
    """Puts pieces into the blocks of this process, in logical order.

    Args:
      of_devices: pieces of a round, as a cut program has them.
      place: their first local row in their blocks.
      height: local rows of a block.
      num_blocks: of the round.
      blocks: number in the round -> [height, num_shards, columns]; changed.
    """
    num_shards = self._placement.num_shards
    for i, pieces in enumerate(of_devices):
      for part in pieces.addressable_shards:
        block = part.index[0].start or 0
        if part.replica_id or block >= num_blocks:
          continue
        values = np.asarray(part.data)[0]
        piece_height, num_here, _ = values.shape
        runs = self._runs(i * num_here + (part.index[2].start or 0), num_here)
        if runs == [(0, 0, num_shards)] and piece_height == height:
          blocks[block] = values  # all of it, in order
          continue
        if block not in blocks:
          blocks[block] = self._buffers.take(
              (height, num_shards, self.columns), self.dtype
          )
        rows = blocks[block][place : place + piece_height]
        for shard, logical, count in runs:
          rows[:, logical : logical + count] = values[:, shard : shard + count]

  def _runs(self, first: int, count: int) -> list[tuple[int, int, int]]:
    """Which shards of a device follow one another in logical order.

    Args:
      first: its first shard.
      count: how many it has.

    Returns:
      First shard, counted from `first`; its place in logical order; how many.
    """
    num_shards = self._placement.num_shards
    place = (first - self._table.shard_rotation) % num_shards
    before = min(count, num_shards - place)  # the last is followed by the first
    runs = [(0, place, before), (before, 0, count - before)]
    return [run for run in runs if run[2]]

  def write(self, first: int, values: np.ndarray) -> _Filled:
    num_shards = self._placement.num_shards
    end = first + len(values)
    height = self._height([(first, end)])
    start = self._local_row(first, height)
    skip = first - start * num_shards
    by_row = values
    # Whole rows of shards: what is around the block stays as it is.
    is_masked = skip != 0 or len(values) != height * num_shards
    if is_masked:
      by_row = np.zeros((height * num_shards, self.columns), values.dtype)
      by_row[skip : skip + len(values)] = values
    by_row = by_row.reshape(height, num_shards, self.columns)

    def of_shards(index):
      shards = range(num_shards)[index[1]]
      runs = self._runs(shards.start, len(shards))
      if runs == [(0, 0, num_shards)]:
        return by_row  # in order
      shape = (height, len(shards), self.columns)
      rows = self._buffers.take(shape, self.dtype)
      for shard, logical, count in runs:
        rows[:, shard : shard + count] = by_row[:, logical : logical + count]
      return rows

    axes = self._axes()
    if self._sharding is None:
      pieces = jax.device_put(
          of_shards((slice(None), slice(None))), self._stack.value.sharding
      )
    else:
      mesh = self._sharding.mesh
      pieces = jax.make_array_from_callback(
          by_row.shape,
          jax.sharding.NamedSharding(mesh, PartitionSpec(None, axes, None)),
          of_shards,
      )
    is_ref = isinstance(self._stack.value, jax.Ref)
    program = _fill_program(
        num_shards,
        is_masked,
        is_ref,
        None if is_ref else _format_of(self._stack.value),
        self._sharding and self._sharding.mesh,
        axes,
        self._stack.value.ndim,
    )
    filled, done = program(
        self._stack.value,
        pieces,
        np.array(
            [
                self._table.row_offset_in_shard,
                self._table.shard_rotation,
                start,
                first,
                end,
            ],
            np.int32,
        ),
    )
    if not is_ref:
      self._stack.value = filled
    return _Filled(done)

  @property
  def turns(self) -> tuple[int, ...]:
    """The process that yields each of the ranges that are read together.

    The next ones are read in the same turns. One process has all parts of a
    block; several exchange them, so that each device has a block.
    """
    sharding = self._stack.value.sharding
    processes = {device.process_index for device in sharding.device_set}
    if len(processes) == 1:
      return tuple(processes)
    whole_blocks = jax.sharding.NamedSharding(
        self._sharding.mesh, PartitionSpec(self._axes())
    )
    by_block = {}
    # The first device that has a block is its replica 0.
    for device, (blocks,) in whole_blocks.devices_indices_map(
        (self._num_parts(),)
    ).items():
      by_block.setdefault(blocks.start or 0, device.process_index)
    return tuple(by_block[block] for block in sorted(by_block))

  def _num_parts(self) -> int:
    """Devices that have different rows."""
    if self._sharding is None:
      return 1
    return num_parts(self._sharding.mesh, self._axes())

  def _axes(self):
    """The mesh axes by which rows are split."""
    if self._sharding is None or not self._sharding.spec:
      return None
    return self._sharding.spec[0]

  def _rows_in_shard(self) -> int:
    rows = self._placement.rows_of(self._table)
    return rows.stop - rows.start

  def _height(self, ranges: Sequence[_row_blocks.Range]) -> int:
    """Local rows of each shard that any of the ranges is in."""
    num_shards = self._placement.num_shards
    return max(
        (-(-end // num_shards) - first // num_shards for first, end in ranges),
        default=1,
    )

  def _local_row(self, first: int, height: int) -> int:
    """Where to cut `height` local rows so that row `first` is in them."""
    local = first // self._placement.num_shards
    return min(local, self._rows_in_shard() - height)


class _Filled:
  """A block on its way into a stack."""

  def __init__(self, done: jax.Array):
    self._done = done

  def result(self) -> None:
    self._done.block_until_ready()


def num_parts(mesh, axes) -> int:
  if axes is None:
    return 1
  axes = axes if isinstance(axes, tuple) else (axes,)
  return int(np.prod([mesh.shape[axis] for axis in axes]))


def _format_of(array: jax.Array) -> Any:
  """Layout and sharding, so that what replaces the array has both."""
  if isinstance(array.format, layout.Format) and array.format.layout:
    return array.format
  return array.sharding


def _value_of(stack):
  """Of an array or, in a program, of what a Ref refers to."""
  return stack[...]


# Of the type of all indices: a Python number has 64 bits with jax_enable_x64.
_ZERO = np.int32(0)


# Programs are kept, because jit finds a compiled program by the function. They
# differ in the shapes of stacks alone as a rule, which jit keeps apart.
@functools.lru_cache(maxsize=256)
def _cut_program(num_shards, height, columns, group, mesh, axes, ndim):
  """(stack, starts i32[group]) -> group x pieces [group, height, .., columns].

  Of each shard, its rows from starts[i] on. Where a table is in it is no part of
  the program, so that tables of one size share it. Of several processes, array i
  has the shards of device i, split by blocks: each device has one of the group.
  Else there is one array, of one block, split by shards.
  """

  def cut(stack, starts):
    values = _value_of(stack)
    parts = num_parts(mesh, axes) if mesh is not None else 1
    shards = values.reshape(num_shards // parts, -1, values.shape[-1])

    def block(start):
      # Rows that follow one another in a table are in one shard after the
      # other. Not one slice, transposed: of a jax.Ref, XLA on CPU makes that
      # two passes with new memory between, four times the time.
      return jnp.stack(
          [
              jax.lax.dynamic_slice(
                  shards, (np.int32(shard), start, _ZERO), (1, height, columns)
              )[0]
              for shard in range(shards.shape[0])
          ],
          axis=1,
      )

    pieces = jnp.stack([block(starts[i]) for i in range(group)])
    if group > 1:
      pieces = jax.lax.all_to_all(pieces, axes, 0, 0, tiled=True)
    # One by one, as they are exchanged: together they would be copied again.
    return [pieces[i : i + 1] for i in range(group)]

  if mesh is not None:
    rows = PartitionSpec(axes, *[None] * (ndim - 1))
    out = PartitionSpec(axes) if group > 1 else PartitionSpec(None, None, axes)
    cut = jax.shard_map(
        cut, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=out
    )
  return jax.jit(cut)


@functools.lru_cache(maxsize=256)
def _fill_program(
    num_shards,
    is_masked,
    is_ref,
    result_format,
    mesh,
    axes,
    ndim,
):
  """(stack, pieces [height, num_shards, columns], place i32[5]) -> both.

  The inverse of a cut, in place: the stack, and `place`, which is there when
  all is done. `place` is where the table is, row offset and rotation; its local
  row where the pieces begin; and its rows [first, end) that are to be written
  if `is_masked`; else all.
  """

  def fill(stack, pieces, place):
    values = _value_of(stack)
    row_offset, rotation, start, first, end = place
    pieces = pieces.swapaxes(0, 1)
    shards = values.reshape(pieces.shape[0], -1, values.shape[-1])
    at = (_ZERO, row_offset + start, _ZERO)
    if is_masked:
      shape = pieces.shape[:2]
      shard = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
      if mesh is not None and axes is not None:
        shard += jax.lax.axis_index(axes) * shape[0]
      local = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + start
      row = local * num_shards + (shard - rotation) % num_shards
      is_written = ((row >= first) & (row < end))[:, :, None]
      before = jax.lax.dynamic_slice(shards, at, pieces.shape)
      pieces = jnp.where(is_written, pieces, before)
    filled = jax.lax.dynamic_update_slice(shards, pieces, at)
    filled = filled.reshape(values.shape)
    if is_ref:
      stack[...] = filled
      return None, place
    return filled, place

  if mesh is not None:
    rows = PartitionSpec(axes, *[None] * (ndim - 1))
    fill = jax.shard_map(
        fill,
        mesh=mesh,
        in_specs=(rows, PartitionSpec(None, axes, None), PartitionSpec()),
        out_specs=(PartitionSpec() if is_ref else rows, PartitionSpec()),
    )
  if is_ref:
    return jax.jit(fill)
  return jax.jit(fill, donate_argnums=0, out_shardings=(result_format, None))
