# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Values of tables to values of stacks, and back, for messages.

A message (lib/proto/embedding_spec.proto) is all that is known of the model
where a checkpoint is read. Dtypes are kept. Arrays of NumPy are rearranged
on the host, those of JAX where they are.

Arrays may be tables, slots like them, or slots with one number per row, which
have one column.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.values import _stack_values
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import numpy as np


def stack_and_shard_feature_tables(
    feature_tables: Mapping[str, jax.Array],
    embedding_specs: embedding_spec_pb2.EmbeddingSpecProto,
    delete_input: bool = False,
) -> dict[str, jax.Array]:
  """The stacks that hold the given tables.

  Takes no more memory than one stack beside arguments and results.

  Args:
    feature_tables: table name -> [vocab_size, embedding_dim], all with one
      sharding. Others than those of `embedding_specs` are ignored. Where all of
      a stack are [vocab_size, 1], they are slots of one number per row, unless
      that is the shape of the tables.
    embedding_specs: the stacks. Each table goes where its row_offset_in_shard
      says, whatever the order of the message.
    delete_input: delete the arrays of a stack as soon as it is made.

  Returns:
    Stack name -> [stack_vocab_size, stack_embedding_dim], shard after shard,
    with the sharding of the tables; slots of one number per row have one
    column. Padding is 0.

  Raises:
    IndexError: if there are no tables.
    ValueError: if a table is missing, has another shape than the message says
      or another sharding than the others, or the message contradicts itself.
  """
  if not feature_tables:
    raise IndexError("feature_tables is empty. Pass the tables of the stacks.")
  _check_one_sharding(feature_tables)
  placements = []
  for stack in embedding_specs.stacked_table_specs:
    placement = _placement.from_proto(stack)
    _check_has_tables(placement, feature_tables)
    if all(
        feature_tables[table.name].shape == (table.vocabulary_size, 1)
        for table in placement.tables
    ) and any(table.embedding_dim > 1 for table in placement.tables):
      placement = placement.one_column()
    _check_shapes(placement, feature_tables)
    placements.append(placement)

  stacks = {}
  for placement in placements:
    tables = [feature_tables[table.name] for table in placement.tables]
    stacks[placement.name] = _stack(placement, tables)
    if delete_input:
      _delete(*tables)
  return stacks


def unstack_and_unshard_stacked_tables(
    stacked_tables: Mapping[str, jax.Array],
    embedding_specs: embedding_spec_pb2.EmbeddingSpecProto,
    donate: bool = False,
) -> dict[str, jax.Array]:
  """The tables in the given stacks.

  Takes no memory of the size of a stack beside arguments and results.

  Args:
    stacked_tables: stack name -> [stack_vocab_size, stack_embedding_dim], or
      [stack_vocab_size, 1] for slots of one number per row. Others than those
      of `embedding_specs` are ignored.
    embedding_specs: the stacks.
    donate: delete a stack as soon as its tables are made.

  Returns:
    Table name -> [vocab_size, embedding_dim or 1], sharded as its stack; not by
    rows, if the devices cannot share its rows equally.

  Raises:
    ValueError: if a stack is missing or has another shape than the message
      says, or the message contradicts itself.
  """
  for stack in embedding_specs.stacked_table_specs:
    if stack.stack_name not in stacked_tables:
      raise ValueError(
          f"stacked_tables lacks the stack {stack.stack_name!r}. It has"
          f" {', '.join(stacked_tables) or 'none'}."
      )
  tables = {}
  for stack in embedding_specs.stacked_table_specs:
    tables |= unstack_and_unshard_stacked_table(
        stacked_tables[stack.stack_name], stack, donate
    )
  return tables


def unstack_and_unshard_stacked_table(
    stacked_table: jax.Array,
    stack: embedding_spec_pb2.StackedTableSpecProto,
    donate: bool = False,
) -> dict[str, jax.Array]:
  """unstack_and_unshard_stacked_tables of one stack."""
  placement = _placement.from_proto(stack)
  if stacked_table.shape == (placement.num_rows, 1):
    placement = placement.one_column()
  expected = (placement.num_rows, placement.embedding_dim)
  if stacked_table.shape != expected:
    raise ValueError(
        f"Stack {placement.name!r}: expected an array of shape {expected}, got"
        f" {stacked_table.shape}."
    )
  if isinstance(stacked_table, jax.Array):
    tables = _stack_values.unstack_on_device(
        placement, stacked_table, stacked_table.dtype
    )
  else:
    shards = stacked_table.reshape(
        placement.num_shards, placement.rows_in_shard, placement.embedding_dim
    )
    tables = map(
        jnp.asarray,
        _stack_values.unstack_on_host(placement, shards, shards.dtype),
    )
  result = {
      table.name: values for table, values in zip(placement.tables, tables)
  }
  if donate:
    _delete(stacked_table)
  return result


def _check_one_sharding(tables: Mapping[str, jax.Array]) -> None:
  (first, expected), *others = (
      # None on the host.
      (name, getattr(table, "sharding", None))
      for name, table in tables.items()
  )
  for name, sharding in others:
    if sharding != expected:
      raise ValueError(
          f"Tables {first!r} and {name!r} have different shardings:"
          f" {expected} and {sharding}. Bring all tables to one with"
          " jax.device_put."
      )


def _check_has_tables(
    placement: _placement.StackPlacement,
    tables: Mapping[str, jax.Array],
) -> None:
  for table in placement.tables:
    if table.name not in tables:
      raise ValueError(
          f"Stack {placement.name!r}: feature_tables lacks its table"
          f" {table.name!r}. It has {', '.join(tables)}."
      )


def _check_shapes(
    placement: _placement.StackPlacement,
    tables: Mapping[str, jax.Array],
) -> None:
  for table in placement.tables:
    expected = (table.vocabulary_size, table.embedding_dim)
    if tables[table.name].shape != expected:
      raise ValueError(
          f"Table {table.name!r}: expected an array of shape {expected}, got"
          f" {tables[table.name].shape}."
      )


def _stack(
    placement: _placement.StackPlacement, tables: list[jax.Array]
) -> jax.Array:
  dtype = jnp.result_type(*(table.dtype for table in tables))
  if isinstance(tables[0], jax.Array):
    return _stack_values.stack_on_device(
        placement, tables, 0, dtype, is_flat=True
    )
  shards = _stack_values.stack_on_host(placement, tables, 0, dtype)
  return jnp.asarray(shards.reshape(-1, placement.embedding_dim))


def _delete(*arrays: jax.Array | np.ndarray) -> None:
  for array in arrays:
    if isinstance(array, jax.Array):
      array.delete()
