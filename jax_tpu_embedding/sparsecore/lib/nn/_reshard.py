# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Values of tables to values of stacks, and back.

A table [V, D] becomes a block [num_shards, R, D'] of its stack: padded to
R * num_shards rows and D' columns, row i in shard i mod num_shards, and the
shards rotated. A stack is its blocks one below the other.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import _specs


def stack_and_shard_tables(
    table_specs: _specs.Nested[_specs.TableSpec],
    tables: _specs.Nested[Any],
    num_shards: int,
    pad_value: float = math.nan,
) -> dict[str, _specs.Nested[jax.Array]]:
  """The stacks that hold the given tables.

  Args:
    table_specs: a tree of stacked or prepared tables.
    tables: the same tree with, for each table, a tree of arrays [V, D]: its
      values, or values and slots.
    num_shards: SparseCores of the job.
    pad_value: of rows and columns beyond a table's. Rows of a stack that belong
      to none of the given tables are 0.

  Returns:
    Stack name -> the tree that each of its tables has, with
    f32[num_shards, stack_vocab_size / num_shards, stack_embedding_dim].

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if the trees differ, an array has another shape than its table,
      or the tables were planned for another number of shards.
  """
  specs, structure = jax.tree.flatten(table_specs)
  # Flattens `tables` no deeper than the specs: what is below is kept.
  values = structure.flatten_up_to(tables)
  stacks = collections.defaultdict(list)
  for spec, value in zip(specs, values):
    stacks[spec.setting_in_stack.stack_name].append((spec, value))

  stacked = {}
  for stack_name, members in stacks.items():
    members.sort(key=lambda m: m[0].setting_in_stack.row_offset_in_shard)
    member_specs, member_values = zip(*members)
    _check_layout(member_specs, num_shards)
    stacked[stack_name] = jax.tree.map(
        lambda *arrays, specs=member_specs: _stack(
            specs, arrays, num_shards, pad_value
        ),
        *member_values,
    )
  return stacked


def unshard_and_unstack_tables(
    table_specs: _specs.Nested[_specs.TableSpec],
    stacked_tables: Mapping[str, _specs.Nested[jax.Array]],
    num_shards: int,
) -> _specs.Nested[jax.Array]:
  """The tables in the given stacks: the inverse of stack_and_shard_tables.

  Args:
    table_specs: a tree of stacked or prepared tables.
    stacked_tables: stack name -> a tree of arrays, [num_shards, rows, columns]
      or with the first two dimensions joined.
    num_shards: SparseCores of the job.

  Returns:
    The tree of `table_specs` with, for each table, the tree of its stack with
    f32[vocabulary_size, embedding_dim].

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if a stack is missing, has another shape than its spec says, or
      was planned for another number of shards.
  """

  def unstack(spec: _specs.TableSpec) -> Any:
    stack = spec.stacked_table_spec
    if stack.stack_name not in stacked_tables:
      raise ValueError(
          f"Table {spec.name!r}: stacked_tables lacks its stack"
          f" {stack.stack_name!r}. It has {', '.join(stacked_tables)}."
      )
    _check_layout([spec], num_shards)
    return jax.tree.map(
        lambda array: _unstack(spec, array, num_shards),
        stacked_tables[stack.stack_name],
    )

  return jax.tree.map(unstack, table_specs)


def _stack(
    specs: tuple[_specs.TableSpec, ...],
    arrays: tuple[jax.typing.ArrayLike, ...],
    num_shards: int,
    pad_value: float,
) -> jax.Array:
  """One array of a stack from those of its tables, by ascending row offset."""
  stack = specs[0].stacked_table_spec
  blocks = []
  end = 0  # rows of a shard that `blocks` cover

  def fill(start: int) -> None:
    if start > end:
      shape = (num_shards, start - end, stack.stack_embedding_dim)
      blocks.append(jnp.zeros(shape, jnp.float32))

  for spec, array in zip(specs, arrays):
    fill(spec.setting_in_stack.row_offset_in_shard)
    blocks.append(shard_table(spec, array, num_shards, pad_value))
    end = spec.setting_in_stack.row_offset_in_shard + blocks[-1].shape[1]
  fill(stack.stack_vocab_size // num_shards)
  return jnp.concatenate(blocks, axis=1)


def shard_table(
    spec: _specs.TableSpec,
    array: jax.typing.ArrayLike,
    num_shards: int,
    pad_value: float,
) -> jax.Array:
  """f32[V, D] to the table's block, f32[num_shards, R, D']."""
  array = jnp.asarray(array, jnp.float32)
  expected = (spec.vocabulary_size, spec.embedding_dim)
  if array.shape != expected:
    raise ValueError(
        f"Table {spec.name!r}: expected an array of shape {expected}, got"
        f" {array.shape}."
    )
  setting = spec.setting_in_stack
  padding = (
      (0, setting.padded_vocab_size - spec.vocabulary_size),
      (0, setting.padded_embedding_dim - spec.embedding_dim),
  )
  padded = jnp.pad(array, padding, constant_values=pad_value)
  sharded = padded.reshape(-1, num_shards, padded.shape[1]).swapaxes(0, 1)
  return jnp.roll(sharded, setting.shard_rotation, axis=0)


def _unstack(
    spec: _specs.TableSpec, array: jax.typing.ArrayLike, num_shards: int
) -> jax.Array:
  """A table, f32[V, D], from its stack."""
  stack = spec.stacked_table_spec
  setting = spec.setting_in_stack
  array = jnp.asarray(array, jnp.float32)
  rows_in_shard = stack.stack_vocab_size // num_shards
  shape = (num_shards, rows_in_shard, stack.stack_embedding_dim)
  flat_shape = (num_shards * rows_in_shard, stack.stack_embedding_dim)
  if array.shape not in (shape, flat_shape):
    raise ValueError(
        f"Stack {stack.stack_name!r}: expected an array of shape {shape} or"
        f" {flat_shape}, got {array.shape}."
    )
  start = setting.row_offset_in_shard
  block = array.reshape(shape)[
      :, start : start + setting.padded_vocab_size // num_shards
  ]
  sharded = jnp.roll(block, -setting.shard_rotation, axis=0)
  padded = sharded.swapaxes(0, 1).reshape(-1, shape[-1])
  return padded[: spec.vocabulary_size, : spec.embedding_dim]


def _check_layout(
    specs: list[_specs.TableSpec] | tuple[_specs.TableSpec, ...],
    num_shards: int,
) -> None:
  """Raises ValueError unless tables fit into their stack, cut into shards.

  Args:
    specs: tables of one stack, by ascending row offset.
    num_shards: SparseCores of the job.
  """
  stack = specs[0].stacked_table_spec
  multiple = constants.ALIGNMENT * num_shards
  end = 0
  for spec in specs:
    setting = spec.setting_in_stack
    rows = layout.round_up(spec.vocabulary_size, multiple)
    start = setting.row_offset_in_shard
    fits = start >= end and rows == setting.padded_vocab_size
    end = start + rows // num_shards
    if not fits or end > stack.stack_vocab_size // num_shards:
      raise ValueError(
          f"Table {spec.name!r} in stack {stack.stack_name!r} was not planned"
          f" for {num_shards} shards: {setting}, {stack.stack_vocab_size} rows"
          " in the stack. Pass the number of SparseCores (devices x"
          " num_sc_per_device) that the specs were prepared for."
      )
