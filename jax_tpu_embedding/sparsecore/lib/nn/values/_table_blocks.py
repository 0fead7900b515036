# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A table that is made in blocks of rows, by few programs for many tables.

A block has some rows of each shard. Its shape is one of a few, and what makes
it is one program for tables of all sizes: it takes long to compile, and needs no
memory of the size of a table.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _random_blocks
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
import numpy as np

# Of a block on a device: at most 64 MiB for all that it is computed from.
_MAX_ELEMENTS = 2**21
# The sizes of blocks are powers of it, so that there are few.
_RATIO = 8
_NUMBERS = jax.ShapeDtypeStruct((4,), np.uint32)


@dataclasses.dataclass(frozen=True)
class BlockShape:
  """What blocks of many tables have in common."""

  shape: tuple[int, int, int]  # shards, rows of a shard, columns
  dtype: np.dtype
  sharding: jax.sharding.NamedSharding | None  # None: not committed


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableBlocks:
  """The blocks of a table."""

  block: BlockShape
  recipe: _random_blocks.Recipe
  key: jax.Array
  scalars: tuple[np.ndarray, ...]
  table: _placement.TablePlacement

  @property
  def num_rows(self) -> int:
    """Of each shard of the table, that a block has."""
    return min(self.block.shape[1], self._rows_in_shard)

  @property
  def first_rows(self) -> list[int]:
    """Where in a shard of the table blocks begin.

    The last one begins earlier than where the one before ends, if the rows do
    not divide, and makes some rows again.
    """
    last = self._rows_in_shard - self.num_rows
    return [
        min(first, last)
        for first in range(0, self._rows_in_shard, self.block.shape[1])
    ]

  @property
  def _rows_in_shard(self) -> int:
    return self.table.padded_vocabulary_size // self.block.shape[0]

  @property
  def program(self) -> Any:
    """The jitted function that makes a block."""
    return _make_block(self.recipe, self.block)

  @property
  def operands(self) -> tuple[Any, ...]:
    """Shapes and types of what the program is called with."""
    scalars = tuple(
        jax.ShapeDtypeStruct((), scalar.dtype) for scalar in self.scalars
    )
    key = jax.ShapeDtypeStruct(self.key.shape, self.key.dtype)
    return key, scalars, _NUMBERS

  def make(
      self, program: Callable[..., jax.Array], first_row: int
  ) -> jax.Array:
    """A block, [shards, rows of a shard, columns]; padding is zero.

    Args:
      program: self.program, or that compiled.
      first_row: one of `first_rows`.
    """
    numbers = (
        first_row,
        self.table.shard_rotation,
        self.table.vocabulary_size,
        self.table.embedding_dim,
    )
    return program(self.key, self.scalars, np.array(numbers, np.uint32))


def plan(
    placement: _placement.StackPlacement,
    table: _placement.TablePlacement,
    traced: _random_blocks.TracedInitializer,
    key: jax.Array,
    dtype: np.dtype,
    by_rows: jax.sharding.NamedSharding | None,
    *,
    may_exceed: bool,
) -> TableBlocks:
  """The blocks of one table of a stack.

  Args:
    placement: the stack.
    table: one of its tables.
    traced: its initializer, which has a recipe.
    key: of the table.
    dtype: of the stack.
    by_rows: the sharding of tables, if they are committed to one.
    may_exceed: whether a block may have more rows than the table.
  """
  num_shards, columns = placement.num_shards, placement.embedding_dim
  sharding, num_devices = None, 1
  if by_rows is not None:
    axis = by_rows.spec[0]
    num_devices = _shardings.num_parts(by_rows.mesh, axis)
    sharding = by_rows.update(spec=jax.sharding.PartitionSpec(axis, None, None))
  most = max(_MAX_ELEMENTS * num_devices // (num_shards * columns), 1)
  most = 2 ** (most.bit_length() - 1)
  rows = table.padded_vocabulary_size // num_shards
  if isinstance(key, jax.core.Tracer):
    size = rows  # a program would repeat the operations of each block
  else:
    size = _block_rows(rows, most, may_exceed)
  return TableBlocks(
      block=BlockShape((num_shards, size, columns), dtype, sharding),
      recipe=traced.recipe,
      key=key,
      scalars=traced.scalars,
      table=table,
  )


def _block_rows(rows: int, most: int, may_exceed: bool) -> int:
  """How many rows of a shard a block has.

  Args:
    rows: of the table.
    most: that a block has.
    may_exceed: whether it may have more rows than the table.
  """
  size = 1
  if may_exceed and rows <= most:
    while size < rows:
      size *= _RATIO
    return min(size, most)
  while size * _RATIO <= min(rows, most):
    size *= _RATIO
  return most if rows >= most else size


@functools.lru_cache(maxsize=256)
def _make_block(recipe: _random_blocks.Recipe, block: BlockShape) -> Any:
  """The jitted function (key, scalars, numbers) -> block."""
  num_shards, rows_in_block, columns = block.shape

  def make_shards(shards, key, scalars, numbers):
    first, rotation, vocabulary_size, embedding_dim = numbers
    place = jnp.arange(rows_in_block, dtype=jnp.uint32) + first
    n = np.uint32(num_shards)
    of_shard = (shards + n - rotation % n) % n
    row = (place * n + of_shard[:, None]).reshape(-1)
    values = recipe.rows(
        list(scalars),
        (row.size, columns),
        lambda: _random_blocks.draw(key, row, embedding_dim, columns),
    )
    column = jax.lax.broadcasted_iota(jnp.uint32, values.shape, 1)
    is_table = (row < vocabulary_size)[:, None] & (column < embedding_dim)
    values = jnp.where(is_table, values, 0).astype(block.dtype)
    return values.reshape(-1, rows_in_block, columns)

  def make(key, scalars, numbers):
    shards = jnp.arange(num_shards, dtype=jnp.uint32)
    operands = (shards, jax.random.key_data(key), scalars, numbers)
    if block.sharding is None:
      return make_shards(*operands)
    # Each device draws for its shards: no call on CPUs is cut by XLA.
    P = jax.sharding.PartitionSpec
    return jax.shard_map(
        make_shards,
        mesh=block.sharding.mesh,
        in_specs=(P(block.sharding.spec[0]), P(), P(), P()),
        out_specs=block.sharding.spec,
        check_vma=False,
    )(*operands)

  return jax.jit(make, out_shardings=block.sharding, keep_unused=True)


def lower(program: Any, operands: tuple[Any, ...]) -> jax.stages.Lowered:
  """program.lower(*operands), once for each."""
  return _lower_once(
      program, jax.tree.structure(operands), *jax.tree.leaves(operands)
  )


@functools.lru_cache(maxsize=256)
def _lower_once(program, structure, *leaves):
  return program.lower(*jax.tree.unflatten(structure, leaves))
