# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Plans on specs: the public API stores a plan in the specs that it is for.

Each function that changes specs is a call of _planner, which returns a plan,
and one of apply, which stores it. Nothing is stored when planning fails.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any
from typing import Literal

from absl import logging
import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables


def apply(
    plan: _planner.Plan, feature_specs: _tables.Nested[_tables.FeatureSpec]
) -> None:
  """Stores `plan` in the specs it covers, in place, and logs its warnings."""
  for warning in plan.warnings:
    logging.warning("%s", warning)
  for feature in jax.tree.leaves(feature_specs):
    setting = plan.settings.get(feature.table_spec.name)
    if setting is None:
      continue
    feature.table_spec.setting_in_stack = setting
    feature.table_spec.stacked_table_spec = plan.stacks[setting.stack_name]
    feature.id_transformation = plan.transformations[feature.name]


def prepare_feature_specs_for_training(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int | None = None,
) -> None:
  """Gives every table that is in no stack yet a stack of its own, in place.

  Tables that are stacked already stay as they are, so a second call changes
  nothing. They must have been stacked for the same number of SparseCores,
  together with all their features.

  Args:
    feature_specs: a tree of FeatureSpecs.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: those of the first JAX
      device.

  Raises:
    ValueError: if a spec is invalid.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(num_sc_per_device)
  for feature in _tables.features_of(feature_specs):
    _check_shapes(feature)
  plan = _planner.plan_stack_alone(
      feature_specs,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  stacked = [
      feature
      for feature in jax.tree.leaves(feature_specs)
      if feature.table_spec.is_stacked()
  ]
  _tables.check_planned_for(
      [feature.table_spec for feature in stacked],
      global_device_count * num_sc_per_device,
  )
  for feature in stacked:
    if feature._id_transformation is None:
      raise ValueError(
          f"Feature {feature.name!r} was not there when its table"
          f" {feature.table_spec.name!r} was stacked, so the stack has no place"
          " for its samples. Stack or prepare all features together."
      )
    _tables.check_is_as_stacked(feature.table_spec)
  _check_no_place_is_of_two(stacked)
  apply(plan, feature_specs)


def _check_no_place_is_of_two(features: Sequence[_tables.FeatureSpec]) -> None:
  """Raises ValueError if two tables have one place in a stack, or two features.

  As a copy with another name has, of a spec that was stacked: ids of the one
  would find and update the rows of the other, and samples share activations.
  """
  tables, samples = {}, {}
  for feature in features:
    table, setting = feature.table_spec, feature.table_spec.setting_in_stack
    stack = setting.stack_name
    first = tables.setdefault((stack, setting.row_offset_in_shard), table)
    if first.name != table.name:
      raise ValueError(
          f"Tables {first.name!r} and {table.name!r} have the same rows of stack"
          f" {stack!r}, as a spec has that was copied after it was stacked."
          " Stack or prepare new specs: dataclasses.replace(table, name=...,"
          " _stacked_table_spec=None, _setting_in_stack=None)."
      )
    first = samples.setdefault(
        (stack, feature.id_transformation.row_offset), feature
    )
    if first.name != feature.name:
      raise ValueError(
          f"Features {first.name!r} and {feature.name!r} have the same samples"
          f" of stack {stack!r}, as a spec has that was copied after its table"
          f" {table.name!r} was stacked. Stack or prepare new specs of all"
          " features of the table together: dataclasses.replace(feature,"
          " _id_transformation=None, table_spec=...)."
      )


def _check_shapes(feature: _tables.FeatureSpec) -> None:
  """Shapes must agree with each other and with the table."""
  _tables.check_width(feature)
  lead = feature.output_shape[:-1]
  if None in lead:
    return  # Only raw ids tell.
  declared = feature.input_shape[0]
  if declared not in (None, lead[0], math.prod(lead)):
    raise ValueError(
        f"Feature {feature.name!r}: input_shape {tuple(feature.input_shape)}"
        f" is of a batch of {declared}, and output_shape"
        f" {tuple(feature.output_shape)} of one of {lead[0]}. Give both the"
        " global batch."
    )


def stack_tables(
    features: Any,
    table_names: Sequence[str],
    global_device_count: int,
    num_sc_per_device: int,
    rotation: int | None = None,
    stack_to_max_ids_per_partition: (
        _planner.LimitsCallable | Literal["tables"]
    ) = (_planner.get_default_limits),
    stack_to_max_unique_ids_per_partition: (
        _planner.LimitsCallable | Literal["tables"]
    ) = (_planner.get_default_limits),
    stack_name: str | None = None,
    fail_on_excess_padding: bool = False,
    *,
    activation_mem_bytes_limit: int = (
        _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
    ),
) -> None:
  """Makes one stack of the named tables, in this order, in place.

  Args:
    features: a tree of FeatureSpecs.
    table_names: the tables. They must have the same dtype, optimizer, combiner
      and quantization, with row-wise Adagrad the same embedding_dim too, and be in
      no stack with others.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device.
    rotation: shards by which each table is rotated against the one before it;
      default: num_sc_per_device.
    stack_to_max_ids_per_partition: gives the limit of the stack, or "tables":
      the sum of those of its tables. A function is not used for a stack of one
      table, which has the limits of its table.
    stack_to_max_unique_ids_per_partition: the same for distinct rows.
    stack_name: default: the names joined by "_", shortened if long.
    fail_on_excess_padding: refuse, and not only warn, if tables have to be
      padded to the width of the widest.
    activation_mem_bytes_limit: recorded in the stack.

  Raises:
    ValueError: if a spec is invalid or the tables cannot form the stack.
    KeyError: if no feature has a table of one of the names.
  """
  plan = _planner.plan_stack_tables(
      features,
      table_names,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      stack_name=stack_name,
      rotation=rotation,
      fail_on_excess_padding=fail_on_excess_padding,
      limits=_planner.StackLimits(
          max_ids_per_partition=stack_to_max_ids_per_partition,
          max_unique_ids_per_partition=stack_to_max_unique_ids_per_partition,
          activation_mem_bytes_limit=activation_mem_bytes_limit,
      ),
  )
  apply(plan, features)


def auto_stack_tables(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int | None = None,
    stack_to_max_ids_per_partition: (
        _planner.LimitsCallable | Literal["tables"]
    ) = (_planner.get_default_limits),
    stack_to_max_unique_ids_per_partition: (
        _planner.LimitsCallable | Literal["tables"]
    ) = (_planner.get_default_limits),
    use_short_stack_names: bool = True,
    *,
    activation_mem_bytes_limit: int | None = None,
    rotation: int | None = None,
) -> None:
  """Stacks all tables that are alike, in place.

  Tables share a stack if they have the same padded width, dtype, optimizer,
  combiner and quantization, with row-wise Adagrad the same embedding_dim too, while the
  activations of the stack on one SparseCore take no more than
  `activation_mem_bytes_limit`. Tables with placement "tensorcore" get stacks of
  their own.

  Args:
    feature_specs: a tree of FeatureSpecs.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: those of the first JAX
      device.
    stack_to_max_ids_per_partition: gives the limit of a stack with several
      tables, or "tables": the sum of theirs. A stack with one table has the
      limits of its table.
    stack_to_max_unique_ids_per_partition: the same for distinct rows.
    use_short_stack_names: shortens long names and ends them in a hash.
    activation_mem_bytes_limit: default: 2 MiB.
    rotation: shards by which each table is rotated against the one before it;
      default: num_sc_per_device.

  Raises:
    ValueError: if a spec is invalid, or a table is in a stack with others.
  """
  if activation_mem_bytes_limit is None:
    activation_mem_bytes_limit = _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT
  plan = _planner.plan_auto_stack(
      feature_specs,
      global_device_count=global_device_count,
      num_sc_per_device=hardware.resolve_num_sc_per_device(num_sc_per_device),
      rotation=rotation,
      use_short_stack_names=use_short_stack_names,
      limits=_planner.StackLimits(
          max_ids_per_partition=stack_to_max_ids_per_partition,
          max_unique_ids_per_partition=stack_to_max_unique_ids_per_partition,
          activation_mem_bytes_limit=activation_mem_bytes_limit,
      ),
  )
  apply(plan, feature_specs)
