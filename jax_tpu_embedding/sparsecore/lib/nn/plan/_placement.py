# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where the tables of a stack are in it, whoever says so: specs or messages."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.proto import embedding_spec_pb2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlacement:
  """A table in its stack; see cc/planner/plan.h for a picture."""

  name: str
  vocabulary_size: int
  embedding_dim: int
  padded_vocabulary_size: int
  row_offset_in_shard: int
  shard_rotation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackPlacement:
  """A stack as shards [num_shards, rows_in_shard, embedding_dim].

  Raises:
    ValueError: if a table does not fit into the stack or overlaps another.
  """

  name: str
  num_shards: int
  rows_in_shard: int
  embedding_dim: int
  # Not necessarily all tables of the stack, by ascending row offset.
  tables: tuple[TablePlacement, ...]

  def __post_init__(self):
    end, before = 0, None
    for table in self.tables:
      start = table.row_offset_in_shard
      rotation = table.shard_rotation
      rows = table.padded_vocabulary_size
      where = f"Table {table.name!r} in stack {self.name!r}"
      if rows % self.num_shards or rows < table.vocabulary_size:
        raise ValueError(
            f"{where}: its {table.vocabulary_size} rows are padded to {rows},"
            f" which is not a plan for {self.num_shards} shards. Prepare its"
            " spec (embedding.prepare_feature_specs_for_training) for this"
            " number of SparseCores, devices x num_sc_per_device."
        )
      if table.embedding_dim > self.embedding_dim:
        raise ValueError(
            f"{where}: has {table.embedding_dim} columns, and the stack"
            f" {self.embedding_dim}. Prepare its spec again."
        )
      if not 0 <= rotation < self.num_shards:
        raise ValueError(
            f"{where}: shard_rotation must be in [0, {self.num_shards}), the"
            f" shards of the stack, got {rotation}. Prepare its spec again."
        )
      if start < 0:
        raise ValueError(
            f"{where}: row_offset_in_shard must not be negative, got {start}."
            " Prepare its spec again."
        )
      if start < end:
        raise ValueError(
            f"{where}: starts at row {start} of each shard, where table"
            f" {before!r} is. Give each table once, as it was planned."
        )
      end, before = start + rows // self.num_shards, table.name
    if end > self.rows_in_shard:
      raise ValueError(
          f"Table {before!r} in stack {self.name!r}: ends at row {end} of each"
          f" of the {self.num_shards} shards, and the stack has"
          f" {self.rows_in_shard}. Pass the number of SparseCores that it was"
          " prepared for, devices x num_sc_per_device."
      )

  @property
  def num_rows(self) -> int:
    return self.num_shards * self.rows_in_shard

  def rows_of(self, table: TablePlacement) -> slice:
    """The rows of each shard that the table has, padding included."""
    start = table.row_offset_in_shard
    return slice(start, start + table.padded_vocabulary_size // self.num_shards)

  def one_column(self) -> StackPlacement:
    """The same rows with one number each."""
    return dataclasses.replace(
        self,
        embedding_dim=1,
        tables=tuple(
            dataclasses.replace(table, embedding_dim=1) for table in self.tables
        ),
    )

  def only(self, table: TablePlacement) -> StackPlacement:
    """A stack as wide as this one that has only `table`."""
    return dataclasses.replace(
        self,
        rows_in_shard=table.padded_vocabulary_size // self.num_shards,
        tables=(dataclasses.replace(table, row_offset_in_shard=0),),
    )


def from_specs(
    table_specs: Sequence[_tables.TableSpec], num_shards: int
) -> StackPlacement:
  """The placement of tables that are in one stack.

  A table that is not stacked has no stack that says how many rows there are:
  they end with the last table.

  Args:
    table_specs: at least one table of the stack.
    num_shards: SparseCores of the job. A replicated table is one shard.

  Raises:
    ValueError: if the tables were planned for another number of shards.
  """
  _tables.check_planned_for(table_specs, num_shards)
  num_shards = table_specs[0].num_shards_of(num_shards)
  tables = sorted(
      (
          TablePlacement(
              name=spec.name,
              vocabulary_size=spec.vocabulary_size,
              embedding_dim=spec.embedding_dim,
              padded_vocabulary_size=spec.setting_in_stack.padded_vocab_size,
              row_offset_in_shard=spec.setting_in_stack.row_offset_in_shard,
              shard_rotation=spec.setting_in_stack.shard_rotation,
          )
          for spec in table_specs
      ),
      key=lambda table: table.row_offset_in_shard,
  )
  setting = table_specs[0].setting_in_stack
  if table_specs[0].is_stacked():
    num_rows = table_specs[0].stacked_table_spec.stack_vocab_size
  else:
    last = tables[-1]
    num_rows = (
        last.row_offset_in_shard * num_shards + last.padded_vocabulary_size
    )
  return StackPlacement(
      name=setting.stack_name,
      num_shards=num_shards,
      rows_in_shard=num_rows // num_shards,
      embedding_dim=setting.padded_embedding_dim,
      tables=tuple(tables),
  )


def from_proto(
    stack: embedding_spec_pb2.StackedTableSpecProto,
) -> StackPlacement:
  """The placement of all tables of a stack.

  Messages list tables in the order of features, which is not that of rows if
  the user named the tables of the stack.

  Raises:
    ValueError: if the message contradicts itself.
  """
  if stack.num_sparsecores <= 0:
    raise ValueError(
        f"Stack {stack.stack_name!r}: num_sparsecores must be positive, got"
        f" {stack.num_sparsecores}."
    )
  if stack.stack_vocab_size % stack.num_sparsecores:
    raise ValueError(
        f"Stack {stack.stack_name!r}: stack_vocab_size is"
        f" {stack.stack_vocab_size}, which is not a number of rows for each of"
        f" {stack.num_sparsecores} shards. Make the message with"
        " create_proto_from_feature_specs."
    )
  for table in stack.table_specs:
    if table.padded_embedding_dim != stack.stack_embedding_dim:
      raise ValueError(
          f"Table {table.table_name!r} in stack {stack.stack_name!r}:"
          f" padded_embedding_dim is {table.padded_embedding_dim}, and the"
          f" stack_embedding_dim {stack.stack_embedding_dim}. Make the message"
          " with create_proto_from_feature_specs."
      )
  return StackPlacement(
      name=stack.stack_name,
      num_shards=stack.num_sparsecores,
      rows_in_shard=stack.stack_vocab_size // stack.num_sparsecores,
      embedding_dim=stack.stack_embedding_dim,
      tables=tuple(
          TablePlacement(
              name=table.table_name,
              vocabulary_size=table.vocab_size,
              embedding_dim=table.embedding_dim,
              padded_vocabulary_size=table.padded_vocab_size,
              row_offset_in_shard=table.row_offset_in_shard,
              shard_rotation=table.shard_rotation,
          )
          for table in sorted(
              stack.table_specs, key=lambda table: table.row_offset_in_shard
          )
      ),
  )
