# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What prepared specs say: their tables and stacks, and sizes of buffers."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import layout
from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


def get_table_specs(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> dict[str, _tables.TableSpec]:
  """The tables of the features by name.

  Raises:
    ValueError: if two features have one name.
  """
  names = set()
  tables = {}
  for feature in _tables.features_of(feature_specs):
    if feature.name in names:
      raise ValueError(
          f"Feature spec {feature.name} is already defined. Rename one of the"
          " two."
      )
    names.add(feature.name)
    tables[feature.table_spec.name] = feature.table_spec
  return tables


def get_stacked_table_specs(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> dict[str, _tables.StackedTableSpec]:
  """The stacks of the features by name.

  Raises:
    ValueError: if two features have one name, or a table is not stacked.
  """
  stacks = {}
  for table in get_table_specs(feature_specs).values():
    if not table.is_stacked():
      raise ValueError(
          "embedding.prepare_feature_specs_for_training was not called for"
          f" table {table.name}. Call it first."
      )
    stack = table.stacked_table_spec
    stacks[stack.stack_name] = stack
  return stacks


def split_features(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> list[_tables.FeatureSpec]:
  """The features whose tables are split over devices, not replicated."""
  return [
      feature
      for feature in jax.tree.leaves(feature_specs)
      if not feature.table_spec.is_replicated
  ]


def get_split_stacks(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> dict[str, _tables.StackedTableSpec]:
  """get_stacked_table_specs without stacks that each device has as a whole."""
  return {
      name: stack
      for name, stack in get_stacked_table_specs(feature_specs).items()
      if not stack.is_replicated
  }


def embedding_dim_of_tables(
    stack: _tables.StackedTableSpec,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> int:
  """The embedding_dim of the tables of a stack, of which there must be one.

  Raises:
    ValueError: if they have different ones. Earlier versions planned so, for
      any optimizer.
  """
  widths = {
      table.name: table.embedding_dim
      for table in get_table_specs(feature_specs).values()
      if table.setting_in_stack.stack_name == stack.stack_name
  }
  if len(set(widths.values())) > 1:
    raise ValueError(
        f"Stack {stack.stack_name!r}: with {stack.optimizer!r} its tables must"
        f" have the same embedding_dim, got {widths}. Stack new specs, and move"
        " tables that are trained to the new stacks."
    )
  return next(iter(widths.values()))


def check_prepared(
    features: Sequence[_tables.FeatureSpec], num_shards: int
) -> None:
  """Checks that the ids of features can be used.

  Args:
    features: the leaves of a tree of FeatureSpecs.
    num_shards: SparseCores of the job.

  Raises:
    ValueError: if two features have one name, or a table is not stacked, or was
      planned for another number of shards or fewer rows.
  """
  # One loop over plain attributes: it runs for every batch.
  tables = {}
  for feature in features:
    table = feature.table_spec
    tables[table.name] = table
    if not table.is_stacked():
      get_stacked_table_specs(features)  # raises
  if len({feature.name for feature in features}) < len(features):
    get_table_specs(features)  # raises
  _tables.check_planned_for(tables.values(), num_shards)


def compute_coo_buffer_size_per_device(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int | None = None,
    enable_minibatching: bool = False,
) -> dict[str, int]:
  """Stack name -> cells of one device, of stacks that are split over devices.

  Raises:
    ValueError: if specs are not prepared, or a suggested size exceeds what the
      limits of the stack can fill.
  """
  get_stacked_table_specs(feature_specs)  # raises if not prepared
  return converter.compute_coo_buffer_size_per_device(
      split_features(feature_specs),
      global_device_count,
      hardware.resolve_num_sc_per_device(num_sc_per_device),
      enable_minibatching,
  )


def limits_of_specs(
    features: Iterable[_tables.FeatureSpec],
) -> tuple[tuple[str, layout.PartitionLimits], ...]:
  """The limits that stacks with buffers have now, for BufferSettings."""
  limits = {}  # for every batch: plain attributes
  for feature in features:
    stack = feature.table_spec.stacked_table_spec
    if stack.placement == "sparsecore":
      limits[stack.stack_name] = stack.partition_limits
  return tuple(limits.items())
