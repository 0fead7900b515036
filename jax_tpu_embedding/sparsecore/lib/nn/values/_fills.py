# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The programs that make a variable of a stack, table by table.

The first one makes the stack, the others write their table into it, in place.
A program has no names, and takes the place of a table as an argument: it is the
same for all tables of one shape and kind of initializer.

Tables of random numbers are made in blocks of rows. Their shape is one of a few,
and what makes a block is one program for tables of all sizes: it takes long to
compile, where what writes it into the stack does not. It also needs no memory of
the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _initializers
from jax_tpu_embedding.sparsecore.lib.nn.values import _random_blocks
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
from jax_tpu_embedding.sparsecore.lib.nn.values import _stack_values
import numpy as np

StackPlacement = _placement.StackPlacement
TablePlacement = _placement.TablePlacement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill:
  """The program of one table, and its arguments."""

  # jax.jit of a fill_program.
  program: Any
  # The stack's shape; None for the first table.
  stack: jax.ShapeDtypeStruct | None
  # A key, or the shape of a whole table.
  source: jax.Array | jax.ShapeDtypeStruct
  # Makes a whole table, which is in memory only while it is written.
  make_whole: Callable[[], jax.Array] | None
  # Row offset and rotation; None for the first table, which knows its own.
  place: np.ndarray | None

  @property
  def programs(self) -> list[Any]:
    return [self.program]

  def lower(self) -> list[jax.stages.Lowered]:
    return [self.program.lower(self.stack, self.source, self.place)]

  def run(
      self, programs: Sequence[Callable[..., jax.Array]], stack: Any
  ) -> jax.Array:
    """The stack with the table in it; `stack` is consumed.

    Args:
      programs: what to run: self.programs, or those compiled.
      stack: the result of the fill before; None for the first table.
    """
    source = self.make_whole() if self.make_whole else self.source
    return programs[0](stack, source, self.place)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFill:
  """The programs of a table of random numbers that is made in blocks of rows."""

  blocks: _Blocks
  recipe: _random_blocks.Recipe
  key: jax.Array
  scalars: list[np.ndarray]
  table: TablePlacement
  # The stack, and whether there is one before this table.
  stack: jax.ShapeDtypeStruct
  has_stack: bool
  first_rows: range  # of the blocks, in a shard of the table

  @property
  def programs(self) -> list[Any]:
    return [program for program, _ in self._calls()]

  def lower(self) -> list[jax.stages.Lowered]:
    return [_lower(program, arguments) for program, arguments in self._calls()]

  def _calls(self) -> list[tuple[Any, tuple[Any, ...]]]:
    """What makes a block, and what writes the first one and the others."""
    make = _make_block(self.recipe, self.blocks)
    block = jax.ShapeDtypeStruct(
        self.blocks.shape, self.stack.dtype, sharding=self.blocks.sharding
    )
    scalars = tuple(
        jax.ShapeDtypeStruct((), scalar.dtype) for scalar in self.scalars
    )
    calls = [(make, (_KEY, scalars, _NUMBERS))]
    size = min(self.blocks.shape[1], self.table_rows_in_shard)
    for stack in [None] * (not self.has_stack) + [self.stack] * (
        self.has_stack or len(self.first_rows) > 1
    ):
      write = _write_block(self.stack, size, self.blocks.shape)
      calls.append((write, (stack, block, _PLACE)))
    return calls

  @property
  def table_rows_in_shard(self) -> int:
    return self.table.padded_vocabulary_size // self.blocks.shape[0]

  def run(
      self, programs: Sequence[Callable[..., jax.Array]], stack: Any
  ) -> jax.Array:
    """As that of Fill."""
    make, *write = programs
    key = jax.random.key_data(self.key)
    offset = self.table.row_offset_in_shard
    for i, first in enumerate(self.first_rows):
      # The last block begins earlier, and makes some rows again.
      first = min(first, self.table_rows_in_shard - self.blocks.shape[1])
      first = max(first, 0)
      block = make(
          key,
          tuple(self.scalars),
          np.array(
              [
                  first,
                  self.table.shard_rotation,
                  self.table.vocabulary_size,
                  self.table.embedding_dim,
              ],
              np.uint32,
          ),
      )
      stack = write[min(i, len(write) - 1)](
          stack, block, np.int32(offset + first)
      )
    return stack


@dataclasses.dataclass(frozen=True)
class _Blocks:
  """Blocks of one shape: rows of each shard of a table."""

  shape: tuple[int, int, int]  # shards, rows of a shard, columns
  dtype: np.dtype
  sharding: jax.sharding.NamedSharding | None


_KEY = jax.ShapeDtypeStruct((2,), np.uint32)
_NUMBERS = jax.ShapeDtypeStruct((4,), np.uint32)
_PLACE = jax.ShapeDtypeStruct((), np.int32)
# Of a block on a device: at most 64 MiB for all that it is computed from.
_MAX_ELEMENTS = 2**21
# The sizes of blocks are powers of it, so that there are few.
_RATIO = 8


def _block_rows(rows: int, most: int, is_first: bool) -> int:
  """How many rows of a shard a block has.

  Args:
    rows: of the table.
    most: that a block has.
    is_first: whether the table is the first of its stack: one block may have
      more rows than the table, as what writes it is a program of its own.
  """
  size = 1
  if is_first and rows <= most:
    while size < rows:
      size *= _RATIO
    return min(size, most)
  while size * _RATIO <= min(rows, most):
    size *= _RATIO
  return most if rows >= most else size


@functools.lru_cache(maxsize=256)
def _make_block(recipe: _random_blocks.Recipe, blocks: _Blocks) -> Any:
  """The jitted function (key, scalars, numbers) -> block."""
  num_shards, rows_in_block, columns = blocks.shape

  def make(key, scalars, numbers):
    first, rotation, vocabulary_size, embedding_dim = numbers
    shape = (num_shards, rows_in_block)
    shard = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    place = jax.lax.broadcasted_iota(jnp.uint32, shape, 1) + first
    n = np.uint32(num_shards)
    row = (place * n + (shard + n - rotation % n) % n).reshape(-1)
    values = recipe.rows(
        key,
        list(scalars),
        _random_blocks.positions(row, embedding_dim, columns),
    )
    column = jax.lax.broadcasted_iota(jnp.uint32, values.shape, 1)
    is_table = (row < vocabulary_size)[:, None] & (column < embedding_dim)
    values = jnp.where(is_table, values, 0).astype(blocks.dtype)
    return values.reshape(blocks.shape)

  return jax.jit(make, out_shardings=blocks.sharding, keep_unused=True)


@functools.lru_cache(maxsize=256)
def _write_block(
    stack: jax.ShapeDtypeStruct, size: int, shape: tuple[int, int, int]
) -> Any:
  """The jitted function (stack or None, block, row in shard) -> stack.

  Args:
    stack: its shape, type and layout.
    size: how many rows of each shard of the block are written.
    shape: of the block.
  """
  num_shards, _, columns = shape

  def write(before, block, row):
    if before is None:
      before = jnp.zeros(stack.shape, stack.dtype)
    after = jax.lax.dynamic_update_slice(
        before.reshape(num_shards, -1, columns), block[:, :size], (0, row, 0)
    )
    return after.reshape(stack.shape)

  return jax.jit(
      write, out_shardings=stack.sharding, donate_argnums=0, keep_unused=True
  )


def _lower(program: Any, arguments: tuple[Any, ...]) -> jax.stages.Lowered:
  """program.lower(*arguments), once for each."""
  return _lower_once(
      program, jax.tree.structure(arguments), *jax.tree.leaves(arguments)
  )


@functools.lru_cache(maxsize=256)
def _lower_once(program, structure, *leaves):
  return program.lower(*jax.tree.unflatten(structure, leaves))


def plan_fills(
    rng: jax.Array,
    placement: StackPlacement,
    variable: int,
    initializers: Sequence[Callable[..., Any]],
    global_sharding: jax.sharding.NamedSharding,
    dtype: np.dtype,
    commit: bool = True,
) -> list[Fill | BlockFill]:
  """What makes one variable of a stack, if it is run in order.

  Args:
    rng: the user's key.
    placement: the stack.
    variable: 0 for the table, then the slots.
    initializers: that of every table of the stack.
    global_sharding: how the result is laid out, over axes of type Auto. If it
      has three dimensions, the first is that of devices.
    dtype: of the result.
    commit: whether the result is committed to the sharding. If not, that has
      one device, and no layout of SparseCores.
  """
  rows = global_sharding.spec[0]
  by_rows = global_sharding.update(spec=jax.sharding.PartitionSpec(rows, None))
  shape = (placement.num_rows, placement.embedding_dim)
  if len(global_sharding.spec) == 3:
    num_devices = _shardings.num_parts(global_sharding.mesh, rows)
    shape = (num_devices, shape[0] // num_devices, shape[1])
  table_layout = layout_of(global_sharding, dtype)
  if not commit and table_layout == global_sharding:
    by_rows = table_layout = None
  stack = jax.ShapeDtypeStruct(shape, dtype, sharding=table_layout)

  fills = []
  for table, initializer in zip(placement.tables, initializers):
    make_whole = None
    if _initializers.returns_whole_table(initializer, table.name):
      own = placement.only(table)
      source = jax.ShapeDtypeStruct(
          (own.num_rows, own.embedding_dim), np.float32, sharding=by_rows
      )
      make_whole = functools.partial(_place, own, initializer, by_rows)
      initializer = None
    else:
      source = _initializers.key_of(rng, table.name, variable)
      if not variable:
        declared = (table.vocabulary_size, table.embedding_dim)
        traced = _random_blocks.trace(initializer, source, declared)
        recipe = traced.recipe
        if recipe is not None and recipe.draws:
          fills.append(
              _block_fill(
                  placement, table, traced, source, by_rows, stack, fills
              )
          )
          continue
        initializer = traced
    program = fill_program(
        placement,
        table,
        initializer,
        by_rows,
        stack,
        pads_with_zero=not variable,
    )
    place = np.array(
        [table.row_offset_in_shard, table.shard_rotation], np.int32
    )
    fills.append(
        Fill(
            program=jax.jit(
                program,
                out_shardings=table_layout,
                donate_argnums=0,
                keep_unused=True,
            ),
            stack=stack if fills else None,
            source=source,
            make_whole=make_whole,
            place=place if fills else None,
        )
    )
  return fills


def _block_fill(
    placement: StackPlacement,
    table: TablePlacement,
    traced: _random_blocks.TracedInitializer,
    key: jax.Array,
    by_rows: jax.sharding.NamedSharding | None,
    stack: jax.ShapeDtypeStruct,
    before: Sequence[Any],
) -> BlockFill:
  num_shards, columns = placement.num_shards, placement.embedding_dim
  sharding, num_devices = None, 1
  if by_rows is not None:
    axis = by_rows.spec[0]
    num_devices = _shardings.num_parts(by_rows.mesh, axis)
    sharding = by_rows.update(spec=jax.sharding.PartitionSpec(axis, None, None))
  most = max(_MAX_ELEMENTS * num_devices // (num_shards * columns), 1)
  most = 2 ** (most.bit_length() - 1)
  rows = table.padded_vocabulary_size // num_shards
  size = _block_rows(rows, most, is_first=not before)
  if isinstance(key, jax.core.Tracer):
    size = rows  # a program would repeat the operations of each block
  return BlockFill(
      blocks=_Blocks((num_shards, size, columns), stack.dtype, sharding),
      recipe=traced.recipe,
      key=key,
      scalars=list(traced.scalars),
      table=table,
      stack=stack,
      has_stack=bool(before),
      first_rows=range(0, rows, size),
  )


def layout_of(
    sharding: jax.sharding.NamedSharding, dtype: np.typing.DTypeLike
) -> jax.sharding.Sharding | layout.Format:
  """Of a variable with that sharding and type."""
  # SparseCores have a layout for tables, which are two-dimensional.
  if len(sharding.spec) == 2:
    return table_layouts.embedding_table_format_with_sharding(
        sharding, dtype=dtype
    )
  return sharding


def fill_program(
    placement: StackPlacement,
    table: TablePlacement,
    initializer: Callable[..., Any] | None,
    by_rows: jax.sharding.NamedSharding | None,
    result: jax.ShapeDtypeStruct,
    *,
    pads_with_zero: bool,
) -> Callable[..., jax.Array]:
  """The function (stack, key or whole table, place) -> stack.

  Without a stack and a place it makes a stack that is zero but for the table.

  Args:
    placement: the stack.
    table: one of its tables.
    initializer: its initializer; None if the function gets the whole table, as
      it is in its shards.
    by_rows: the sharding of tables, if they are committed to one.
    result: shape and dtype of the stack.
    pads_with_zero: whether padding is zero, rather than initialized.
  """
  num_shards = placement.num_shards
  columns = placement.embedding_dim

  def make_table(key):
    declared = (table.vocabulary_size, table.embedding_dim)
    shape = (table.padded_vocabulary_size, columns)
    values = _initializers.call(initializer, key, declared, table.name)
    padding = [(0, size - own, 0) for size, own in zip(shape, declared)]
    padded = jax.lax.pad(values, np.float32(0), padding)
    if not pads_with_zero and shape != declared:
      row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
      column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
      is_padding = (row >= declared[0]) | (column >= declared[1])
      initial = _initializers.call(initializer, key, shape, table.name)
      padded = jnp.where(is_padding, initial, padded)
    return padded

  def fill(stack, source, place):
    if place is None:
      row_offset, rotation = table.row_offset_in_shard, table.shard_rotation
    else:
      row_offset, rotation = place
    if initializer is None:
      block = source.reshape(num_shards, -1, columns)
    else:
      block = _stack_values.to_block(
          make_table(source), num_shards, rotation, by_rows
      )
    block = block.astype(result.dtype)
    if stack is None:
      after = placement.rows_in_shard - row_offset - block.shape[1]
      padding = ((0, 0, 0), (row_offset, after, 0), (0, 0, 0))
      stack = jax.lax.pad(block, jnp.zeros((), block.dtype), padding)
    else:
      stack = jax.lax.dynamic_update_slice(
          stack.reshape(num_shards, -1, columns), block, (0, row_offset, 0)
      )
    return stack.reshape(result.shape)

  return fill


def _place(
    placement: StackPlacement,
    initializer: Callable[[], Any],
    by_rows: jax.sharding.NamedSharding | None,
) -> jax.typing.ArrayLike:
  """The stack of one table, f32[rows, D], each device's rows made for it."""
  values = _initializers.call_whole(initializer, placement.tables[0])

  def rows_on_device(index):
    first, end, _ = index[0].indices(placement.num_rows)
    first, end = (row // placement.rows_in_shard for row in (first, end))
    out = np.empty(
        (end - first, placement.rows_in_shard, placement.embedding_dim),
        np.float32,
    )
    for shard in range(first, end):
      _stack_values.fill_shard(
          placement, shard, [values], 0.0, out[shard - first]
      )
    return out.reshape(-1, placement.embedding_dim)

  if by_rows is None:
    return rows_on_device((slice(None),))
  return jax.make_array_from_callback(
      (placement.num_rows, placement.embedding_dim), by_rows, rows_on_device
  )
