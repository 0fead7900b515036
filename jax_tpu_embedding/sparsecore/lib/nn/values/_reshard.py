# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Values of tables to values of stacks, and back, for specs.

Arrays of NumPy are rearranged on the host, those of JAX where they are.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.values import _stack_values
from jax_tpu_embedding.sparsecore.lib.nn.values import _variables
import numpy as np

_SLOT_DTYPE = np.dtype(np.float32)


class _Variable(NamedTuple):
  """What an array of a stack, or of one of its tables, is."""

  placement: _placement.StackPlacement
  dtype: np.dtype


def stack_and_shard_tables(
    table_specs: _tables.Nested[_tables.TableSpec],
    tables: _tables.Nested[Any],
    num_shards: int,
    pad_value: float = math.nan,
) -> dict[str, _tables.Nested[jax.Array]]:
  """The stacks that hold the given tables.

  Takes no more memory than one stack beside arguments and results. Stacks of
  sharded arrays are sharded by rows likewise.

  Args:
    table_specs: a tree of stacked or prepared tables.
    tables: the same tree with, for each table, a tree of arrays [V, D]: its
      values; or values and slots, in the order of operands, of which those with
      one number per row are [V, 1]. They are left as they are.
    num_shards: SparseCores of the job.
    pad_value: of rows and columns beyond a table's. NaN is 0 in stacks of
      optimizers that may look at whole rows, row-wise Adagrad and those of
      users: there the padding of a row would reach its values. Rows of a stack
      that belong to none of the given tables are 0.

  Returns:
    Stack name -> the tree that each of its tables has, with [num_shards,
    stack_vocab_size / num_shards, stack_embedding_dim] of the type of the
    table, and float32 for slots.

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
    stacks[spec.stacked_table_spec.stack_name].append((spec, value))

  stacked = {}
  for stack_name, members in stacks.items():
    members.sort(key=lambda m: m[0].setting_in_stack.row_offset_in_shard)
    member_specs, member_values = zip(*members)
    placement = _placement.from_specs(member_specs, num_shards)
    entry = jax.tree.structure(member_values[0])
    variables = _variables_of(placement, member_specs[0], entry.num_leaves)
    reads_padding = member_specs[0].optimizer.may_read_whole_rows
    of_padding = 0.0 if reads_padding and math.isnan(pad_value) else pad_value
    stacked[stack_name] = jax.tree.map(
        lambda variable, *arrays: _stack(variable, arrays, of_padding),
        jax.tree.unflatten(entry, variables),
        *member_values,
        is_leaf=lambda x: isinstance(x, _Variable),
    )
  return stacked


def unshard_and_unstack_tables(
    table_specs: _tables.Nested[_tables.TableSpec],
    stacked_tables: Mapping[str, _tables.Nested[jax.Array]],
    num_shards: int,
) -> _tables.Nested[jax.Array]:
  """The tables in the given stacks: the inverse of stack_and_shard_tables.

  Takes no memory of the size of a stack beside arguments and results. Tables
  are sharded by rows as their stack, or not at all if its devices cannot share
  their rows equally.

  Args:
    table_specs: a tree of stacked or prepared tables.
    stacked_tables: stack name -> a tree of arrays, [num_shards, rows, columns]
      or with the first two dimensions joined. They are left as they are.
    num_shards: SparseCores of the job.

  Returns:
    The tree of `table_specs` with, for each table, the tree of its stack with
    [vocabulary_size, embedding_dim], of the types of stack_and_shard_tables.
    The `state` that layers keep beside table and slots is of the whole stack,
    and not among them.

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if a stack is missing, has another shape than its spec says, or
      was planned for another number of shards.
  """
  specs, structure = jax.tree.flatten(table_specs)
  stacks = collections.defaultdict(list)
  for i, spec in enumerate(specs):
    stacks[spec.stacked_table_spec.stack_name].append(i)

  tables: list[Any] = [None] * len(specs)
  for stack_name, members in stacks.items():
    if stack_name not in stacked_tables:
      raise ValueError(
          f"Table {specs[members[0]].name!r}: stacked_tables lacks its stack"
          f" {stack_name!r}. It has {', '.join(stacked_tables)}."
      )
    members.sort(key=lambda i: specs[i].setting_in_stack.row_offset_in_shard)
    placement = _placement.from_specs([specs[i] for i in members], num_shards)
    leaves, entry = jax.tree.flatten(_of_rows(stacked_tables[stack_name]))
    variables = _variables_of(placement, specs[members[0]], len(leaves))
    by_leaf = list(map(_unstack, variables, leaves))
    for position, i in enumerate(members):
      tables[i] = jax.tree.unflatten(
          entry, [tables_of_leaf[position] for tables_of_leaf in by_leaf]
      )
  return jax.tree.unflatten(structure, tables)


def _of_rows(variables: Any) -> Any:
  """What has rows among the variables of a stack."""
  if isinstance(variables, tuple) and hasattr(variables, "state"):
    return _variables.EmbeddingVariables(variables.table, variables.slot)
  return variables


def _variables_of(
    placement: _placement.StackPlacement,
    spec: _tables.TableSpec,
    num_arrays: int,
) -> list[_Variable]:
  """What the arrays of a stack are: table and slots, or else tables alone.

  Args:
    placement: the stack.
    spec: one of its tables.
    num_arrays: how many there are of the stack.
  """
  table = _Variable(placement, spec.dtype)
  is_of_rows = spec.optimizer.slot_variables_of_rows()
  if num_arrays != 1 + len(is_of_rows):
    return [table] * num_arrays
  return [table] + [
      _Variable(placement.one_column() if of_rows else placement, _SLOT_DTYPE)
      for of_rows in is_of_rows
  ]


def _stack(
    variable: _Variable,
    arrays: Sequence[jax.typing.ArrayLike],
    pad_value: float,
) -> jax.Array:
  """One array of a stack from those of its tables, by ascending row offset."""
  placement, dtype = variable
  on_device = any(isinstance(array, jax.Array) for array in arrays)
  arrays = [(jnp if on_device else np).asarray(array) for array in arrays]
  for table, array in zip(placement.tables, arrays):
    expected = (table.vocabulary_size, table.embedding_dim)
    if array.shape != expected:
      raise ValueError(
          f"Table {table.name!r}: expected an array of shape {expected}, got"
          f" {array.shape}."
      )
  if on_device:
    return _stack_values.stack_on_device(
        placement, arrays, pad_value, dtype, is_flat=False
    )
  return jnp.asarray(
      _stack_values.stack_on_host(placement, arrays, pad_value, dtype)
  )


def _unstack(
    variable: _Variable, stack: jax.typing.ArrayLike
) -> Sequence[jax.Array]:
  """The tables of placement.tables from one array of their stack."""
  placement, dtype = variable
  on_device = isinstance(stack, jax.Array)
  stack = stack if on_device else np.asarray(stack)
  flat = (placement.num_rows, placement.embedding_dim)
  shape = (placement.num_shards, placement.rows_in_shard, flat[1])
  if stack.shape not in (shape, flat):
    raise ValueError(
        f"Stack {placement.name!r}: expected an array of shape {shape} or"
        f" {flat}, got {stack.shape}."
    )
  if on_device:
    return _stack_values.unstack_on_device(placement, stack, dtype)
  return [
      jnp.asarray(table)
      for table in _stack_values.unstack_on_host(
          placement, stack.reshape(shape), dtype
      )
  ]
