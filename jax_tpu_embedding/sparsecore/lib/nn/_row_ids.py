# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which rows of a stacked array hold the rows of a table.

Rows of the array are numbered shard by shard; see cc/layout/mod_shard.h.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence

import jax
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2


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
