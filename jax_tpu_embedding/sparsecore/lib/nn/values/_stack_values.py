# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Moves rows between tables and the stack that holds them.

A table [V, D] is a block [num_shards, R, D'] of its stack: padded to
R * num_shards rows and D' columns, row i in shard i mod num_shards, and the
shards rotated. A stack is its blocks one below the other.

Twice: on the host every row is copied once, between the arrays of the caller
and the result. On devices it is one program per stack: on one device it needs
no memory but its result, on several each also holds its part of what they send
to each other, never a whole stack.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _shardings
import numpy as np

StackPlacement = _placement.StackPlacement


def fill_shard(
    placement: StackPlacement,
    shard: int,
    tables: Sequence[np.ndarray],
    pad_value: float,
    out: np.ndarray,
) -> None:
  """Writes one shard of a stack.

  Args:
    placement: the stack.
    shard: which one.
    tables: [V, D] each, in the order of placement.tables.
    pad_value: of rows and columns beyond a table's. Rows that belong to no
      table become 0.
    out: [rows_in_shard, embedding_dim], any dtype. Every value is written.
  """
  end = 0
  for table, values in zip(placement.tables, tables):
    rows = placement.rows_of(table)
    out[end : rows.start] = 0
    end = rows.stop
    first = (shard - table.shard_rotation) % placement.num_shards
    source = values[first :: placement.num_shards]
    block = out[rows]
    block[: len(source), : table.embedding_dim] = source
    block[: len(source), table.embedding_dim :] = pad_value
    block[len(source) :] = pad_value
  out[end:] = 0


def stack_on_host(
    placement: StackPlacement,
    tables: Sequence[np.ndarray],
    pad_value: float,
    dtype: np.dtype,
) -> np.ndarray:
  """The shards [num_shards, rows_in_shard, embedding_dim] of a stack."""
  shape = (
      placement.num_shards,
      placement.rows_in_shard,
      placement.embedding_dim,
  )
  out = np.empty(shape, dtype)
  for shard in range(placement.num_shards):
    fill_shard(placement, shard, tables, pad_value, out[shard])
  return out


def unstack_on_host(
    placement: StackPlacement, shards: np.ndarray, dtype: np.dtype
) -> list[np.ndarray]:
  """The tables [V, D] of placement.tables from the shards of their stack."""
  tables = []
  for table in placement.tables:
    out = np.empty((table.vocabulary_size, table.embedding_dim), dtype)
    block = shards[:, placement.rows_of(table), : table.embedding_dim]
    for shard in range(placement.num_shards):
      first = (shard - table.shard_rotation) % placement.num_shards
      rows = out[first :: placement.num_shards]
      rows[:] = block[shard, : len(rows)]
    tables.append(out)
  return tables


def stack_on_device(
    placement: StackPlacement,
    tables: Sequence[jax.Array],
    pad_value: float,
    dtype: np.dtype,
    *,
    is_flat: bool,
) -> jax.Array:
  """As stack_on_host, on the devices of `tables` and sharded as they are.

  Args:
    placement: the stack.
    tables: [V, D] each, all with one sharding. May be traced.
    pad_value: of rows and columns beyond a table's.
    dtype: of the result.
    is_flat: whether the result has the first two dimensions joined.
  """
  shape = (placement.num_rows, placement.embedding_dim)
  if not is_flat:
    shape = (placement.num_shards, placement.rows_in_shard, shape[1])
  if isinstance(tables[0], jax.core.Tracer):
    return _stack(tables, pad_value, placement, shape, dtype, None)

  given = _sharding_of(tables)
  wanted = given
  if isinstance(given, jax.sharding.NamedSharding):
    rows, columns = (*given.spec, None, None)[:2]
    spec = (rows, columns) if is_flat else (rows, None, columns)
    wanted = given.update(spec=jax.sharding.PartitionSpec(*spec))
  wanted = _shardings.fit(wanted, shape)
  program = stack_program(
      placement, shape, dtype, _shardings.auto(given), _shardings.auto(wanted)
  )
  with _shardings.auto_mesh(given):
    tables = jax.device_put(tables, _shardings.auto(given))
    return jax.device_put(program(tables, pad_value), wanted)


def unstack_on_device(
    placement: StackPlacement, stack: jax.Array, dtype: np.dtype
) -> list[jax.Array]:
  """As unstack_on_host, on the devices of `stack` and sharded as it is.

  The rows of a table that its devices cannot share equally are not sharded.

  Args:
    placement: the stack.
    stack: its shards, or the same with the first two dimensions joined. May be
      traced.
    dtype: of the result.
  """
  if isinstance(stack, jax.core.Tracer):
    return _unstack(stack, placement, dtype, None)
  given = _sharding_of([stack])
  by_table = given
  if isinstance(given, jax.sharding.NamedSharding):
    entries = (*given.spec, None, None, None)[: stack.ndim]
    by_table = given.update(
        spec=jax.sharding.PartitionSpec(entries[0], entries[-1])
    )
  wanted = tuple(
      _shardings.fit(by_table, (table.vocabulary_size, table.embedding_dim))
      for table in placement.tables
  )
  program = unstack_program(
      placement,
      dtype,
      _shardings.auto(by_table),
      tuple(_shardings.auto(sharding) for sharding in wanted),
  )
  with _shardings.auto_mesh(given):
    tables = program(jax.device_put(stack, _shardings.auto(given)))
    return jax.device_put(tables, list(wanted))


def _sharding_of(arrays: Sequence[jax.Array]) -> jax.sharding.Sharding | None:
  """Where JAX must leave the arrays, or None if it may move them.

  Then it may also move the result, as that of any function of jax.numpy: to
  put it into a given layout on several devices takes that.
  """
  return next((array.sharding for array in arrays if array.committed), None)


def to_block(
    padded: jax.Array,
    num_shards: int,
    shard_rotation: int | jax.Array,
    by_table: jax.sharding.Sharding | None,
) -> jax.Array:
  """[num_shards * R, D'] to the block [num_shards, R, D'] of a table.

  Args:
    padded: the table with padding.
    num_shards: of its stack.
    shard_rotation: of the table, may be traced.
    by_table: its sharding, if it is known.
  """
  by_row = padded.reshape(-1, num_shards, padded.shape[1])
  return _rotate(_cut(by_row, by_table), shard_rotation).swapaxes(0, 1)


def join_blocks(
    placement: StackPlacement, blocks: Sequence[jax.Array]
) -> jax.Array:
  """The shards of a stack, zero where no table is."""
  parts = []
  end = 0

  def fill(start: int) -> None:
    if start > end:
      shape = (placement.num_shards, start - end, placement.embedding_dim)
      parts.append(jnp.zeros(shape, blocks[0].dtype))

  for table, block in zip(placement.tables, blocks):
    rows = placement.rows_of(table)
    fill(rows.start)
    parts.append(block)
    end = rows.stop
  fill(placement.rows_in_shard)
  return jnp.concatenate(parts, axis=1)


# The programs are kept, because jit finds a compiled program by the function.
@functools.lru_cache(maxsize=256)
def stack_program(placement, shape, dtype, by_table, wanted):
  def program(tables, pad_value):
    return _stack(tables, pad_value, placement, shape, dtype, by_table)

  return jax.jit(program, out_shardings=wanted)


@functools.lru_cache(maxsize=256)
def unstack_program(placement, dtype, by_table, wanted):
  def program(stack):
    return _unstack(stack, placement, dtype, by_table)

  return jax.jit(program, out_shardings=list(wanted))


def _stack(tables, pad_value, placement, shape, dtype, by_table):
  blocks = []
  for table, values in zip(placement.tables, tables):
    padding = (
        (0, table.padded_vocabulary_size - table.vocabulary_size),
        (0, placement.embedding_dim - table.embedding_dim),
    )
    padded = jnp.pad(values.astype(dtype), padding, constant_values=pad_value)
    blocks.append(
        to_block(padded, placement.num_shards, table.shard_rotation, by_table)
    )
  return join_blocks(placement, blocks).reshape(shape)


def _unstack(stack, placement, dtype, by_table):
  shards = stack.reshape(
      placement.num_shards, placement.rows_in_shard, placement.embedding_dim
  )
  tables = []
  for table in placement.tables:
    block = _cut(shards[:, placement.rows_of(table)], by_table)
    by_row = _cut(block.swapaxes(0, 1), by_table)
    padded = _rotate(by_row, -table.shard_rotation).reshape(
        -1, placement.embedding_dim
    )
    tables.append(
        padded[: table.vocabulary_size, : table.embedding_dim].astype(dtype)
    )
  return tables


def _cut(values, by_table):
  """Cuts the first dimension of [n, m, D] as `by_table` cuts rows.

  Says it where shards become rows: XLA would bring all rows to every device.
  """
  if not isinstance(by_table, jax.sharding.NamedSharding):
    return values
  rows, columns = (*by_table.spec, None, None)[:2]
  return jax.lax.with_sharding_constraint(
      values,
      by_table.update(spec=jax.sharding.PartitionSpec(rows, None, columns)),
  )


def _rotate(by_row: jax.Array, rotation: int | jax.Array) -> jax.Array:
  """jnp.roll of the shards of [R, num_shards, D], in which all are together.

  One gather and not two slices, for which XLA makes a copy of the table. Before
  shards are rows they are all on one device, so nothing is sent.
  """
  num_shards = by_row.shape[1]
  shards = (np.arange(num_shards) - rotation) % num_shards
  return by_row.at[:, shards].get(mode="promise_in_bounds")
