# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Stacking of tables, and where rows are in a stack: the public names."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Literal

import jax
from jax_tpu_embedding.sparsecore.lib.core import constants
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.nn import pybind_planner
from jax_tpu_embedding.sparsecore.lib.nn.plan import _plan
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
from jax_tpu_embedding.sparsecore.lib.nn.plan import _row_ids
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
from jax_tpu_embedding.sparsecore.lib.nn.values import _reshard
from jax_tpu_embedding.sparsecore.lib.nn.values import _reshard_protos

ArrayLike = jax.typing.ArrayLike
DEFAULT_ACTIVATION_MEM_BYTES_LIMIT = _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
LimitsCallable = _planner.LimitsCallable
Nested = _tables.Nested
Shape = tuple[int, ...]
StackedTableSpec = _tables.StackedTableSpec
TableSpec = _tables.TableSpec

compute_physical_row_ids = _row_ids.compute_physical_row_ids
get_default_limits = _planner.get_default_limits
get_row_ids_in_stacked_table = _row_ids.get_row_ids_in_stacked_table
get_row_ids_in_stacked_tables = _row_ids.get_row_ids_in_stacked_tables
stack_and_shard_feature_tables = _reshard_protos.stack_and_shard_feature_tables
stack_and_shard_tables = _reshard.stack_and_shard_tables
stack_tables = _plan.stack_tables
unshard_and_unstack_tables = _reshard.unshard_and_unstack_tables
unstack_and_unshard_stacked_tables = (
    _reshard_protos.unstack_and_unshard_stacked_tables
)

# Programs of the reference use these names; nothing here does.
_get_stack_name = _planner.stack_name_of
_next_largest_multiple = layout.round_up
_unstack_and_unshard_stacked_table = (
    _reshard_protos.unstack_and_unshard_stacked_table
)


def auto_stack_tables(
    features: Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int,
    rotation: int | None = None,
    stack_to_max_ids_per_partition: (
        LimitsCallable | Literal["tables"]
    ) = get_default_limits,
    stack_to_max_unique_ids_per_partition: (
        LimitsCallable | Literal["tables"]
    ) = get_default_limits,
    *,
    use_short_stack_names: bool = True,
    activation_mem_bytes_limit: int | None = DEFAULT_ACTIVATION_MEM_BYTES_LIMIT,
) -> None:
  """embedding.auto_stack_tables, with its arguments in another order."""
  _plan.auto_stack_tables(
      features,
      global_device_count,
      num_sc_per_device,
      stack_to_max_ids_per_partition,
      stack_to_max_unique_ids_per_partition,
      use_short_stack_names,
      activation_mem_bytes_limit=activation_mem_bytes_limit,
      rotation=rotation,
  )


def get_table_stacks(
    table_specs: Nested[TableSpec],
) -> dict[str, list[TableSpec]]:
  """The tables of every stack, by its name.

  Raises:
    AssertionError: if a table is not stacked.
  """
  stacks = collections.defaultdict(list)
  for table in jax.tree.leaves(table_specs):
    stacks[table.stacked_table_spec.stack_name].append(table)
  return stacks


def round_up_dim_and_vocab_size(
    tables: Mapping[str, TableSpec], num_sc: int
) -> tuple[dict[str, int], dict[str, int]]:
  """Padded columns and padded rows of each table, if it were alone.

  Args:
    tables: by name.
    num_sc: SparseCores of the job.
  """
  dims = {
      name: layout.round_up(table.embedding_dim, constants.ALIGNMENT)
      for name, table in tables.items()
  }
  vocabulary_sizes = {
      name: layout.round_up(table.vocabulary_size, constants.ALIGNMENT * num_sc)
      for name, table in tables.items()
  }
  return dims, vocabulary_sizes


def compute_table_to_setting_in_stack(
    stack_name: str,
    table_names: Sequence[str],
    padded_embedding_dim: int,
    table_to_padded_vocab_size: Mapping[str, int],
    num_shards: int,
    rotation: int,
) -> dict[str, _tables.TableSettingInStack]:
  """Where the tables of one stack are in it.

  Args:
    stack_name: the stack.
    table_names: its tables, in order.
    padded_embedding_dim: columns of all of them.
    table_to_padded_vocab_size: rows of each, multiples of `num_shards`.
    num_shards: SparseCores of the job.
    rotation: shards by which each table is rotated against the one before it.

  Raises:
    ValueError: if a table has no padded vocabulary size.
  """
  missing = [n for n in table_names if n not in table_to_padded_vocab_size]
  if missing:
    raise ValueError(
        f"Stack {stack_name!r}: table_to_padded_vocab_size lacks"
        f" {', '.join(missing)}."
    )
  sizes = [table_to_padded_vocab_size[name] for name in table_names]
  positions = pybind_planner.place_tables(sizes, num_shards, rotation)
  return {
      name: _tables.TableSettingInStack(
          stack_name=stack_name,
          padded_vocab_size=size,
          padded_embedding_dim=padded_embedding_dim,
          row_offset_in_shard=row_offset_in_shard,
          shard_rotation=shard_rotation,
      )
      for name, size, (row_offset_in_shard, shard_rotation) in zip(
          table_names, sizes, positions
      )
  }


# For programs of the reference, as the names above.
def _split_groups_by_memory_limit(
    groups: Sequence[Sequence[str]],
    table_to_activation_mem_bytes: Mapping[str, int],
    activation_mem_bytes_limit: int,
) -> list[list[str]]:
  """Splits groups of tables, first fit, to stay below the limit."""
  split = []
  for group in groups:
    sizes = [table_to_activation_mem_bytes[name] for name in group]
    for members in pybind_planner.first_fit(sizes, activation_mem_bytes_limit):
      split.append([group[i] for i in members])
  return split
