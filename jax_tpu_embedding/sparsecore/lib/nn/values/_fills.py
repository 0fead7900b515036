# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The programs that make a variable of a stack, table by table.

The first one makes the stack, the others write their table into it, in place.
A program has no names, and takes the place of a table as an argument: it is the
same for all tables of one shape and kind of initializer.

Tables of random numbers and of constants are made in blocks of rows
(_table_blocks.py), and what writes blocks into a stack is a program of its own.
On CPU devices, small stacks need none (_host_fill.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
from jax.experimental import layout
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import table_layouts
from jax_tpu_embedding.sparsecore.lib.core.lowering.native import cpu_calls
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _slot_variables
from jax_tpu_embedding.sparsecore.lib.nn.values import _host_fill
from jax_tpu_embedding.sparsecore.lib.nn.values import _initializers
from jax_tpu_embedding.sparsecore.lib.nn.values import _memory_check
from jax_tpu_embedding.sparsecore.lib.nn.values import _random_blocks
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
from jax_tpu_embedding.sparsecore.lib.nn.values import _stack_values
from jax_tpu_embedding.sparsecore.lib.nn.values import _table_blocks
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
  # Whether the memory of the devices is that of the host.
  is_on_host: bool

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

  def bytes_at_most(self, needs: Sequence[int]) -> int:
    """What a device needs meanwhile, the stack included.

    Args:
      needs: of each of the programs.
    """
    if self.make_whole is None:
      return needs[0]
    if not self.is_on_host:
      return needs[0]
    # What JAX copies the rows from is in the same memory. The table that the
    # initializer returns is the user's, and not counted.
    return needs[0] + _memory_check.bytes_on_device(self.source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewStack:
  """The program that makes a stack of zeros in huge pages, on CPU devices.

  The other fills of the stack write into it. What XLA allocates has small
  pages, with which the first steps take several times as long.
  """

  stack: jax.ShapeDtypeStruct

  @property
  def programs(self) -> list[Any]:
    return [new_stack(self.stack)]

  def lower(self) -> list[jax.stages.Lowered]:
    return [_table_blocks.lower(program, ()) for program in self.programs]

  def run(
      self, programs: Sequence[Callable[..., jax.Array]], stack: None
  ) -> jax.Array:
    """As that of Fill."""
    del stack
    return programs[0]()

  def bytes_at_most(self, needs: Sequence[int]) -> int:
    """As that of Fill."""
    return needs[0]


@functools.lru_cache(maxsize=256)
def new_stack(stack: jax.ShapeDtypeStruct) -> Any:
  """The jitted function () -> zeros in huge pages, for CPU devices.

  Args:
    stack: shape, type and sharding, which may be None.
  """
  sharding = stack.sharding
  if sharding is None:
    return jax.jit(functools.partial(cpu_calls.new_table, stack))
  part = jax.ShapeDtypeStruct(sharding.shard_shape(stack.shape), stack.dtype)
  return jax.jit(
      jax.shard_map(
          functools.partial(cpu_calls.new_table, part),
          mesh=sharding.mesh,
          in_specs=(),
          out_specs=sharding.spec,
          check_vma=False,
      ),
      out_shardings=sharding,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFill:
  """The programs of a table that is made in blocks of rows."""

  blocks: _table_blocks.TableBlocks
  # The stack, and whether there is one before this table.
  stack: jax.ShapeDtypeStruct
  has_stack: bool

  @property
  def programs(self) -> list[Any]:
    return [program for program, _ in self._calls()]

  def lower(self) -> list[jax.stages.Lowered]:
    return [
        _table_blocks.lower(program, operands)
        for program, operands in self._calls()
    ]

  def _calls(self) -> list[tuple[Any, tuple[Any, ...]]]:
    """What makes a block, and what writes the first one and the others."""
    shape = self.blocks.block.shape
    block = jax.ShapeDtypeStruct(
        shape, self.stack.dtype, sharding=self.blocks.block.sharding
    )
    calls = [(self.blocks.program, self.blocks.operands)]
    for stack in [None] * (not self.has_stack) + [self.stack] * (
        self.has_stack or len(self.blocks.first_rows) > 1
    ):
      row = self.blocks.table.row_offset_in_shard if stack is None else None
      write = _write_block(self.stack, self.blocks.num_rows, shape, row)
      calls.append((write, (stack, block, _PLACE)))
    return calls

  def run(
      self, programs: Sequence[Callable[..., jax.Array]], stack: Any
  ) -> jax.Array:
    """As that of Fill."""
    make, *write = programs
    offset = self.blocks.table.row_offset_in_shard
    for i, first in enumerate(self.blocks.first_rows):
      # One block at a time: those of later ones take memory meanwhile.
      jax.block_until_ready(stack)
      stack = write[min(i, len(write) - 1)](
          stack, self.blocks.make(make, first), np.int32(offset + first)
      )
    return stack

  def bytes_at_most(self, needs: Sequence[int]) -> int:
    """As that of Fill."""
    make, *write = needs
    if self.has_stack or len(write) > 1:
      make += _memory_check.bytes_on_device(self.stack)
    return max(make, *write)


_PLACE = jax.ShapeDtypeStruct((), np.int32)
# That take less time than a call.
_FEW_VALUES = 2**14


@functools.lru_cache(maxsize=256)
def _write_block(
    stack: jax.ShapeDtypeStruct,
    size: int,
    shape: tuple[int, int, int],
    first_row: int | None,
) -> Any:
  """The jitted function (stack or None, block, row in shard) -> stack.

  Args:
    stack: its shape, type and layout.
    size: how many rows of each shard of the block are written.
    shape: of the block.
    first_row: the row in shard, if there is no stack; else None.
  """
  num_shards, _, columns = shape
  rows = math.prod(stack.shape) // (num_shards * columns)

  def write(before, block, row):
    block = block[:, :size]
    if before is None:
      # Zeros that are written to would be in memory twice.
      around = (first_row, rows - first_row - size, 0)
      after = jax.lax.pad(
          block, np.zeros((), block.dtype), ((0, 0, 0), around, (0, 0, 0))
      )
    else:
      before = before.reshape(num_shards, -1, columns)
      after = jax.lax.dynamic_update_slice(before, block, (0, row, 0))
    return after.reshape(stack.shape)

  return jax.jit(
      write, out_shardings=stack.sharding, donate_argnums=0, keep_unused=True
  )


def plan_fills(
    rng: jax.Array,
    placement: StackPlacement,
    variable: int,
    initializers: Sequence[Callable[..., Any]],
    global_sharding: jax.sharding.NamedSharding,
    dtype: np.dtype,
    commit: bool = True,
    is_traced: bool = False,
) -> list[Fill | NewStack | BlockFill | _host_fill.HostFill]:
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
    is_traced: whether all runs inside of another program.
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

  sources = [
      _source_of(rng, table, variable, initializer)
      for table, initializer in zip(placement.tables, initializers)
  ]
  devices = list(global_sharding.mesh.devices.flat)
  if not is_traced and _host_fill.is_for(stack, devices):
    parts = [source.part(placement, dtype, by_rows) for source in sources]
    if all(parts):
      return [
          _host_fill.HostFill(
              placement=placement,
              parts=parts,
              stack=stack,
              sharding=table_layout,
          )
      ]
  fills = []
  is_on_host = _host_fill.is_memory_of(devices)
  if not is_traced and is_on_host and sources[0].is_written_in_place:
    fills.append(NewStack(stack=stack))
  for source in sources:
    if source.has_recipe:
      blocks = source.blocks(placement, dtype, by_rows, may_exceed=not fills)
      fills.append(BlockFill(blocks=blocks, stack=stack, has_stack=bool(fills)))
    else:
      fills.append(
          source.fill(
              placement,
              stack,
              by_rows,
              is_first=not fills,
              is_on_host=is_on_host,
          )
      )
  return fills


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
  """What one table of a variable is made from."""

  table: TablePlacement
  variable: int
  initializer: Callable[..., Any]
  is_whole: bool  # what the initializer returns, which takes no arguments
  make_key: Callable[[], jax.Array]
  # Of the table itself, where it can be traced; a slot's is not.
  traced: _random_blocks.TracedInitializer | None

  @property
  def has_recipe(self) -> bool:
    """Whether it can be made in blocks of rows."""
    return self.traced is not None and self.traced.recipe is not None

  @property
  def is_constant(self) -> bool:
    """Whether it is a slot whose rows, and padding, have one value."""
    return bool(self.variable) and isinstance(
        self.initializer, _slot_variables.Constant
    )

  @property
  def is_written_in_place(self) -> bool:
    """Whether writing it into a stack takes no memory for another table.

    What an initializer without recipe returns is the stack, if it is the first
    table, and else in memory beside it.
    """
    return self.has_recipe or self.is_constant or self.is_whole

  def blocks(
      self,
      placement: StackPlacement,
      dtype: np.dtype,
      by_rows: jax.sharding.NamedSharding | None,
      *,
      may_exceed: bool,
  ) -> _table_blocks.TableBlocks:
    return _table_blocks.plan(
        placement,
        self.table,
        self.traced,
        self.make_key(),
        dtype,
        by_rows,
        may_exceed=may_exceed,
    )

  def part(
      self,
      placement: StackPlacement,
      dtype: np.dtype,
      by_rows: jax.sharding.NamedSharding | None,
  ) -> _table_blocks.TableBlocks | _host_fill.ConstantRows | None:
    """Of a HostFill; None if that cannot be."""
    if self.is_constant:
      return _host_fill.ConstantRows(self.table, self.initializer.value)
    if not self.has_recipe:
      return None
    # A block that exceeds the table is made for nothing in part, several blocks
    # are as many calls.
    size = self.table.padded_vocabulary_size * placement.embedding_dim
    return self.blocks(
        placement, dtype, by_rows, may_exceed=size <= _FEW_VALUES
    )

  def fill(
      self,
      placement: StackPlacement,
      stack: jax.ShapeDtypeStruct,
      by_rows: jax.sharding.NamedSharding | None,
      *,
      is_first: bool,
      is_on_host: bool,
  ) -> Fill:
    table, make_whole = self.table, None
    if self.is_whole:
      own = placement.only(table)
      source = jax.ShapeDtypeStruct(
          (own.num_rows, own.embedding_dim), np.float32, sharding=by_rows
      )
      make_whole = functools.partial(_place, own, self.initializer, by_rows)
      initializer = None
    else:
      source = self.make_key()
      initializer = self.traced or self.initializer
    program = fill_program(
        placement,
        table,
        initializer,
        by_rows,
        stack,
        pads_with_zero=not self.variable,
    )
    place = np.array(
        [table.row_offset_in_shard, table.shard_rotation], np.int32
    )
    return Fill(
        program=jax.jit(
            program,
            out_shardings=stack.sharding,
            donate_argnums=0,
            keep_unused=True,
        ),
        stack=None if is_first else stack,
        source=source,
        make_whole=make_whole,
        place=None if is_first else place,
        is_on_host=is_on_host,
    )


def _source_of(
    rng: jax.Array,
    table: TablePlacement,
    variable: int,
    initializer: Callable[..., Any],
) -> _Source:
  is_whole = _initializers.returns_whole_table(initializer, table.name)
  make_key = functools.cache(
      functools.partial(_initializers.key_of, rng, table.name, variable)
  )
  traced = None
  if not variable and not is_whole:
    declared = (table.vocabulary_size, table.embedding_dim)
    with _initializers.naming_table(table.name):
      traced = _random_blocks.trace(initializer, make_key(), declared)
  return _Source(
      table=table,
      variable=variable,
      initializer=initializer,
      is_whole=is_whole,
      make_key=make_key,
      traced=traced,
  )


def layout_of(
    sharding: jax.sharding.NamedSharding, dtype: np.typing.DTypeLike
) -> jax.sharding.Sharding | layout.Format:
  """Of a variable with that sharding and type."""
  # SparseCores have a layout for tables, which are two-dimensional. What is
  # not split is for TensorCores.
  if len(sharding.spec) == 2 and sharding.spec[0] is not None:
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
    rows = table.padded_vocabulary_size // num_shards
    if initializer is None:
      block = source.reshape(num_shards, rows, columns)
    elif isinstance(initializer, _slot_variables.Constant):
      block = jnp.full((num_shards, rows, columns), initializer.value)
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
      # Of one type, which that of Python's numbers depends on jax_enable_x64.
      first = tuple(jnp.asarray(x, jnp.int32) for x in (0, row_offset, 0))
      stack = jax.lax.dynamic_update_slice(
          stack.reshape(num_shards, -1, columns), block, first
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
    try:
      with np.errstate(over="raise"):
        for shard in range(first, end):
          _stack_values.fill_shard(
              placement, shard, [values], 0.0, out[shard - first]
          )
    except FloatingPointError as error:
      raise ValueError(
          f"Table {placement.tables[0].name!r}: the initializer without"
          f" arguments returned a number of {values.dtype} that float32 cannot"
          " hold. Clip what it returns."
      ) from error
    return out.reshape(-1, placement.embedding_dim)

  if by_rows is None:
    return rows_on_device((slice(None),))
  return jax.make_array_from_callback(
      (placement.num_rows, placement.embedding_dim), by_rows, rows_on_device
  )
