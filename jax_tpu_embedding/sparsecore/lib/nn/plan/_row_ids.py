# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which rows of a stacked array hold the rows of a table.

Rows of the array are numbered shard by shard; see cc/layout/mod_shard.h.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import quantized_rows
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2
import numpy as np


def compute_physical_row_ids(
    num_sparse_cores: int,
    stack_vocab_size: int,
    shard_rotation: int,
    row_offset_in_shard: int,
    row_ids: jax.typing.ArrayLike,
) -> jax.typing.ArrayLike:
  """The rows of a stacked array that hold the given rows of a table.

  Works on ints and on NumPy and JAX arrays, also inside jit; does not check
  that the rows exist.

  >>> compute_physical_row_ids(4, 100, 1, 10, 5)
  61

  Args:
    num_sparse_cores: SparseCores of the job, the number of shards.
    stack_vocab_size: rows of the stack.
    shard_rotation: of the table.
    row_offset_in_shard: of the table.
    row_ids: rows of the table.
  """
  shard = (row_ids % num_sparse_cores + shard_rotation) % num_sparse_cores
  local_row = row_ids // num_sparse_cores + row_offset_in_shard
  return shard * (stack_vocab_size // num_sparse_cores) + local_row


def read_rows(
    tables: Mapping[str, Any],
    specs: Any,
    name: str,
    ids: jax.typing.ArrayLike,
) -> jax.Array:
  """Rows of a table by id, however it is stacked and split over devices.

  Args:
    tables: stack name -> EmbeddingVariables, or the table alone; whole arrays
      or jax.Refs, as init_embedding_variables, int8_variables and the layers
      have them.
    specs: the prepared feature specs, or table specs, any tree.
    name: of the table.
    ids: integers of any shape, not traced.

  Returns:
    [*ids.shape, embedding_dim], of the type of the table; f32 of int8 codes.

  Raises:
    ValueError: if there is no such table, or it has no row of one of the ids,
      or ids are a masked array.
    TypeError: if ids are not integers.
  """
  by_name = {}
  for spec in jax.tree.leaves(specs):
    table = getattr(spec, "table_spec", spec)
    by_name[table.name] = table
  if name not in by_name:
    raise ValueError(
        f"There is no table {name!r}. The specs have {sorted(by_name)}."
    )
  spec = by_name[name]
  setting = spec.setting_in_stack
  if setting.stack_name not in tables:
    raise ValueError(
        f"Table {name!r} is in the stack {setting.stack_name!r}, and there are"
        f" the tables {sorted(tables)}. Pass those of these specs."
    )
  if setting.num_shards is None:
    raise ValueError(
        f"Table {name!r} was not prepared, so where its rows are is not known."
        " Call embedding.prepare_feature_specs_for_training. If its features"
        " have sizes of None, prepare copies of the specs with any sizes, for"
        " the same devices and each table alone, and pass these: where rows are"
        " does not depend on sizes."
    )
  if isinstance(ids, np.ma.MaskedArray):
    raise ValueError(
        f"Table {name!r}: ids are a masked array, and there is no row for what"
        " is masked. Pass the others, ids.compressed()."
    )
  # NumPy takes an empty list for floats.
  ids = np.asarray(ids, None if np.size(ids) else np.int32)
  if not np.issubdtype(ids.dtype, np.integer):
    raise TypeError(f"Table {name!r}: ids must be integers, got {ids.dtype}.")
  outside = ids[(ids < 0) | (ids >= spec.vocabulary_size)]
  if outside.size:
    raise ValueError(
        f"Table {name!r}: there is no row {outside[0]}, rows are numbered from"
        f" 0 to {spec.vocabulary_size - 1}."
    )
  table = tables[setting.stack_name]
  if isinstance(table, tuple):
    table = table[0]
  *_, rows_per_part, _ = table.shape
  rows = compute_physical_row_ids(
      setting.num_shards,
      spec.stacked_table_spec.stack_vocab_size,
      setting.shard_rotation,
      setting.row_offset_in_shard,
      ids.astype(np.int64),
  ).astype(np.int32)
  # Tables for jax.pmap have an axis of devices.
  place = (rows,) if table.ndim == 2 else divmod(rows, rows_per_part)
  mesh = jax.typeof(table).sharding.mesh
  if jax.sharding.AxisType.Explicit in mesh.axis_types:
    # JAX wants to be told where the rows go: every device has them all.
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    if isinstance(table, jax.Ref):
      table = table[...]
    found = table.at[place].get(out_sharding=whole)
  else:
    found = table[place]
  if found.dtype == np.int32:
    words = found.reshape(-1, found.shape[-1])
    columns = spec.stacked_table_spec.stack_embedding_dim
    found = quantized_rows.decode(words, columns)
    found = found.reshape(*ids.shape, columns)
  return found[..., : spec.embedding_dim]


def get_row_ids_in_stacked_table(
    stack_table_spec: embedding_spec_pb2.StackedTableSpecProto,
    table_spec: embedding_spec_pb2.TableSpecProto,
    row_ids: Sequence[int],
) -> list[int]:
  """compute_physical_row_ids of a table and its stack, with checks.

  Args:
    stack_table_spec: the stack.
    table_spec: one of its tables.
    row_ids: rows of the table.

  Raises:
    ValueError: if the table has no such row.
  """
  for row_id in row_ids:
    if not 0 <= row_id < table_spec.vocab_size:
      raise ValueError(
          f"Table {table_spec.table_name!r}: there is no row {row_id}, rows are"
          f" numbered from 0 to {table_spec.vocab_size - 1}."
      )
  return [
      compute_physical_row_ids(
          stack_table_spec.num_sparsecores,
          stack_table_spec.stack_vocab_size,
          table_spec.shard_rotation,
          table_spec.row_offset_in_shard,
          row_id,
      )
      for row_id in row_ids
  ]


def get_row_ids_in_stacked_tables(
    embedding_spec_proto: embedding_spec_pb2.EmbeddingSpecProto,
    row_ids: Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
  """The rows of every stack that hold the given rows of tables.

  Args:
    embedding_spec_proto: the stacks.
    row_ids: table name -> rows. Tables that are in no stack are ignored.

  Returns:
    Stack name -> its rows, table after table as the message lists them. Stacks
    without any of the tables are left out.

  Raises:
    ValueError: if a table has no such row.
  """
  result = collections.defaultdict(list)
  for stack in embedding_spec_proto.stacked_table_specs:
    for table in stack.table_specs:
      if table.table_name in row_ids:
        result[stack.stack_name] += get_row_ids_in_stacked_table(
            stack, table, row_ids[table.table_name]
        )
  return result
