# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Planning: feature specs in, a frozen plan out. Changes nothing.

The C++ planner (cc/planner) decides which tables share a stack and where they
go. This module says in a Model what it has to know, and adds to its answer what
only Python can: short names (a hash), limits (functions of the user) and the
specs' own objects.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
import math
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.nn import pybind_planner
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

# Stack name, samples of the stack in a global batch -> limit.
LimitsCallable = Callable[[str, int], int]

# In place of a function: the sum of the limits of the stack's tables.
LIMITS_OF_TABLES = "tables"

# Limits are counted in int32.
_MAX_LIMIT = 2**31 - 1
# Of the limits of tables that a warning names.
_MAX_LISTED = 6


def get_default_limits(name: str, batch_size: int) -> int:
  """The limit of any stack if the user sets none: 256."""
  del name, batch_size
  return 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """How tables become stacks. Covers the tables that were asked for only."""

  stacks: Mapping[str, _tables.StackedTableSpec]  # by stack name
  settings: Mapping[str, _tables.TableSettingInStack]  # by table name
  transformations: Mapping[str, _tables.FeatureIdTransformation]  # by feature
  warnings: tuple[str, ...] = ()  # what the user should know


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackLimits:
  """The limits of stacks with several tables.

  A stack with one table has the limits of its table.
  """

  max_ids_per_partition: LimitsCallable | str = get_default_limits
  max_unique_ids_per_partition: LimitsCallable | str = get_default_limits
  # Recorded in every stack.
  activation_mem_bytes_limit: int = _tables.DEFAULT_ACTIVATION_MEM_BYTES_LIMIT


def plan_auto_stack(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int,
    num_sc_per_device: int,
    rotation: int | None = None,
    limits: StackLimits = StackLimits(),
    use_short_stack_names: bool = True,
) -> Plan:
  """Stacks all tables that are alike, up to the limit of activation memory.

  Raises:
    ValueError: if a spec is invalid, or a table is in a stack with others.
  """
  split, replicated = _by_placement(feature_specs)
  plan = pybind_planner.plan_auto_stack(
      _model(split, global_device_count, num_sc_per_device),
      activation_mem_bytes_limit=limits.activation_mem_bytes_limit,
      rotation=rotation,
  )
  plan = _to_plan(
      plan,
      split,
      num_shards=global_device_count * num_sc_per_device,
      limits=limits,
      name_of=lambda names: stack_name_of(names, use_short_stack_names),
  )
  return _join(plan, _plan_replicated(replicated))


def plan_stack_tables(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    table_names: Sequence[str],
    *,
    global_device_count: int,
    num_sc_per_device: int,
    stack_name: str | None = None,
    rotation: int | None = None,
    fail_on_excess_padding: bool = False,
    limits: StackLimits = StackLimits(),
) -> Plan:
  """Stacks the named tables, in this order.

  Raises:
    ValueError: if a spec is invalid, or the tables cannot form one stack of
      this name.
    KeyError: if no feature has a table of one of the names.
  """
  _check_can_be_stacked(feature_specs, table_names)
  feature_specs, replicated = _by_placement(feature_specs)
  plan = pybind_planner.plan_stack_tables(
      _model(feature_specs, global_device_count, num_sc_per_device),
      table_names=table_names,
      stack_name=stack_name or stack_name_of(table_names),
      rotation=rotation,
      fail_on_excess_padding=fail_on_excess_padding,
  )
  plan = _to_plan(
      plan,
      feature_specs,
      num_shards=global_device_count * num_sc_per_device,
      limits=limits,
  )
  for feature in replicated:
    if feature.table_spec.name in plan.stacks:
      raise ValueError(
          f"Stack {feature.table_spec.name!r} has the name of a table of"
          " placement 'tensorcore', which is that of its stack. Rename one of"
          " the two."
      )
  return plan


def plan_stack_alone(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int,
    num_sc_per_device: int,
) -> Plan:
  """Gives each table that is in no stack yet a stack of its own.

  Unlike the other two, carries suggested buffer sizes over to the stacks.

  Raises:
    ValueError: if a spec is invalid.
  """
  split, replicated = _by_placement(feature_specs)
  plan = _plan_alone(split, global_device_count, num_sc_per_device)
  return _join(plan, _plan_replicated(replicated))


def _plan_replicated(feature_specs: Sequence[_tables.FeatureSpec]) -> Plan:
  """Tables that each device has as a whole, each in a stack of its own.

  Not several in one: a product with the rows of a stack would multiply the ids
  of each table with the rows of all others. Their rows are laid out as those of
  one SparseCore, in order, whatever devices there are.
  """
  return _plan_alone(feature_specs, 1, 1)


def _plan_alone(
    feature_specs: Sequence[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int,
) -> Plan:
  """A stack for each table of one placement that is in none."""
  plan = _to_plan(
      pybind_planner.plan_stack_alone(
          _model(feature_specs, global_device_count, num_sc_per_device)
      ),
      feature_specs,
      num_shards=global_device_count * num_sc_per_device,
      limits=StackLimits(),
  )
  tables = distinct_tables(feature_specs)
  return dataclasses.replace(
      plan,
      stacks={
          name: stack.replace(
              suggested_coo_buffer_size_per_device=tables[
                  name
              ].suggested_coo_buffer_size_per_device
          )
          for name, stack in plan.stacks.items()
      },
  )


def explain(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    *,
    global_device_count: int,
    num_sc_per_device: int,
) -> dict[str, pybind_planner.StackReport]:
  """What the planner says about the stacks that the tables are in now.

  Returns:
    Stack name -> report, in the order in which features first name them, of
    stacks that are split over devices.

  Raises:
    AssertionError: if a table is not stacked.
    ValueError: if a spec is invalid.
  """
  feature_specs, _ = _by_placement(feature_specs)
  model = _model(feature_specs, global_device_count, num_sc_per_device)
  stacks = {}
  for table in distinct_tables(feature_specs).values():
    stack = table.stacked_table_spec
    stacks[stack.stack_name] = stack.activation_mem_bytes_limit
  reports = pybind_planner.explain_stacks(model, list(stacks.items()))
  return {report.stack_name: report for report in reports}


def _by_placement(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> tuple[list[_tables.FeatureSpec], list[_tables.FeatureSpec]]:
  """The features of tables that are split over devices, and of replicated ones.

  Raises:
    ValueError: if two specs of one name describe different tables.
  """
  distinct_tables(feature_specs)
  features = jax.tree.leaves(feature_specs)
  return (
      [f for f in features if not f.table_spec.is_replicated],
      [f for f in features if f.table_spec.is_replicated],
  )


def _join(a: Plan, b: Plan) -> Plan:
  """The plan of the tables of both, which have none in common.

  Raises:
    ValueError: if two features, or stacks, have one name.
  """
  for kind, of_a, of_b in (
      ("features", a.transformations, b.transformations),
      ("stacks", a.stacks, b.stacks),
  ):
    names = sorted(set(of_a) & set(of_b))
    if names:
      raise ValueError(
          f"There are two {kind} {names[0]!r}, of which one has a table of"
          " placement 'tensorcore'. Rename one of the two."
      )
  return Plan(
      stacks={**a.stacks, **b.stacks},
      settings={**a.settings, **b.settings},
      transformations={**a.transformations, **b.transformations},
      warnings=(*a.warnings, *b.warnings),
  )


def _check_can_be_stacked(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    table_names: Sequence[str],
) -> None:
  """Raises ValueError if a table must be in a stack of its own."""
  tables = distinct_tables(feature_specs)
  named = [tables[name] for name in table_names if name in tables]
  alone = [table.name for table in named if table.is_replicated]
  if not alone:
    return
  others = [table.name for table in named if not table.is_replicated]
  beside = f", and {others} have 'sparsecore'" if others else ""
  raise ValueError(
      f"Tables {alone} have placement 'tensorcore'{beside}. Tables that are"
      " replicated are each in a stack of their own. Leave them out of"
      " stack_tables; prepare_feature_specs_for_training gives them their"
      " stacks."
  )


def stack_name_of(
    table_names: Sequence[str],
    use_short_stack_names: bool = True,
    max_original_display_length: int = 50,
    hash_length: int = 12,
) -> str:
  """The names joined by "_"; a long name ends in a hash of the whole.

  >>> stack_name_of(["a", "b"])
  'a_b'
  """
  name = "_".join(table_names)
  if not use_short_stack_names or len(name) <= max_original_display_length:
    return name
  digest = hashlib.sha256(name.encode()).hexdigest()
  return f"{name[:max_original_display_length]}...{digest[:hash_length]}"


def distinct_tables(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
) -> dict[str, _tables.TableSpec]:
  """The tables by name, in the order in which features first name them."""
  tables = {}
  for feature in _tables.features_of(feature_specs):
    table = feature.table_spec
    _check_same_table(tables.get(table.name, table), table)
    tables[table.name] = table
  return tables


def _check_same_table(a: _tables.TableSpec, b: _tables.TableSpec) -> None:
  """Two specs of one name must describe one table, in one state."""
  if a is b:
    return
  states = [
      f"in stack {t.stacked_table_spec.stack_name!r}"
      if t.is_stacked()
      else "in no stack"
      for t in (a, b)
  ]
  if states[0] != states[1]:
    raise ValueError(
        f"Table {a.name!r} has two specs, of which one is {states[0]} and the"
        f" other {states[1]}. Give the features one spec, or stack and prepare"
        " them all together."
    )
  for field in dataclasses.fields(_tables.TableSpec):
    # Initializers are closures, which differ even if made by the same call.
    if not field.compare or field.name == "initializer":
      continue
    values = getattr(a, field.name), getattr(b, field.name)
    if values[0] != values[1]:
      raise ValueError(
          f"Table {a.name!r} has two specs with different {field.name}:"
          f" {values[0]!r} and {values[1]!r}. Give the features one spec, or"
          " the tables two names."
      )


def _model(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int,
) -> pybind_planner.Model:
  tables = distinct_tables(feature_specs)
  # What a table is updated with, by which its type counts too, and where the
  # optimizer asks for it, its width. Numbered by hash: a job may have an
  # optimizer per table.
  optimizers: dict[Any, int] = {}
  descriptions = []
  described_tables = []
  for table in tables.values():
    optimizer_id = optimizers.setdefault(
        (
            table.optimizer,
            table.dtype,
            table.optimizer.depends_on_embedding_dim and table.embedding_dim,
        ),
        len(optimizers),
    )
    if optimizer_id == len(descriptions):
      descriptions.append(_describe_optimizer(table))
    quantization = table.quantization_config
    described_tables.append(
        pybind_planner.Table(
            name=table.name,
            vocabulary_size=table.vocabulary_size,
            embedding_dim=table.embedding_dim,
            combiner=table.combiner,
            optimizer_id=optimizer_id,
            optimizer=descriptions[optimizer_id],
            quantization=quantization
            and pybind_planner.Quantization(**dataclasses.asdict(quantization)),
            stack_name=table.setting_in_stack.stack_name,
            is_stacked=table.is_stacked(),
        )
    )
  index_of_table = {name: index for index, name in enumerate(tables)}
  features = []
  for feature in jax.tree.leaves(feature_specs):
    if None in feature.output_shape:
      raise ValueError(
          f"Feature {feature.name!r}: output_shape is"
          f" {tuple(feature.output_shape)}, and a plan needs all sizes. Leave"
          " out only what a layer is to take from raw ids, and do not stack or"
          " prepare such features yourself."
      )
    features.append(
        pybind_planner.Feature(
            name=feature.name,
            table=index_of_table[feature.table_spec.name],
            num_samples=math.prod(feature.output_shape[:-1]),
        )
    )
  return pybind_planner.Model(
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      tables=described_tables,
      features=features,
  )


def _to_plan(
    plan: pybind_planner.Plan,
    feature_specs: Any,
    *,
    num_shards: int,
    limits: StackLimits,
    name_of: Callable[[Sequence[str]], str] | None = None,
) -> Plan:
  """The plan of a _model of the specs; name_of(tables) names its stacks."""
  # The indices of a plan are those of the model.
  tables = list(distinct_tables(feature_specs).values())
  features = jax.tree.leaves(feature_specs)
  stacks, settings, transformations = {}, {}, {}
  warnings = plan.warnings
  for stack in plan.stacks:
    placements = stack.tables
    members = [tables[placement.table] for placement in placements]
    name = name_of([m.name for m in members]) if name_of else stack.name
    stacks[name] = _to_stack(name, stack, members, limits)
    warnings.extend(_ignored_limits(stacks[name], members, limits))
    for table, placement in zip(members, placements):
      settings[table.name] = _tables.TableSettingInStack(
          stack_name=name,
          padded_vocab_size=placement.padded_vocabulary_size,
          padded_embedding_dim=stack.embedding_dim,
          row_offset_in_shard=placement.row_offset_in_shard,
          shard_rotation=placement.shard_rotation,
          num_shards=num_shards,
      )
    for placement in stack.features:
      transform = placement.transform
      transformations[features[placement.feature].name] = (
          _tables.FeatureIdTransformation(
              row_offset=transform.row_offset,
              col_offset=transform.col_offset,
              col_shift=transform.col_shift,
          )
      )
  return Plan(
      stacks=stacks,
      settings=settings,
      transformations=transformations,
      warnings=tuple(warnings),
  )


def _describe_optimizer(table: _tables.TableSpec) -> str:
  description = repr(table.optimizer)
  if table.optimizer.depends_on_embedding_dim:
    description += f" over {table.embedding_dim} columns"
  if table.dtype != np.float32:
    description += f" of {table.dtype.name}"
  return description


def _to_stack(
    name: str,
    stack: pybind_planner.Stack,
    members: Sequence[_tables.TableSpec],
    limits: StackLimits,
) -> _tables.StackedTableSpec:
  first = members[0]
  chosen = {}
  for field in ("max_ids_per_partition", "max_unique_ids_per_partition"):
    of_stack = getattr(limits, field)
    if of_stack == LIMITS_OF_TABLES:
      # A partition of the stack holds one of each table.
      limit = sum(getattr(table, field) for table in members)
    else:
      # Asked for every stack, so that the function sees them all.
      limit = of_stack(name, stack.num_samples)
      if len(members) == 1:
        limit = getattr(first, field)
    chosen[field] = _checked_limit(name, field, limit)
  return _tables.StackedTableSpec(
      stack_name=name,
      stack_vocab_size=stack.vocabulary_size,
      stack_embedding_dim=stack.embedding_dim,
      optimizer=first.optimizer,
      combiner=first.combiner,
      total_sample_count=stack.num_samples,
      activation_mem_bytes_limit=limits.activation_mem_bytes_limit,
      quantization_config=first.quantization_config,
      dtype=first.dtype,
      placement=first.placement,
      **chosen,
  )


def _checked_limit(stack_name: str, field: str, limit: Any) -> int:
  # Numbers of NumPy and JAX, and 64.0, are integers; True and "64" are not.
  try:
    is_integer = not isinstance(limit, bool | str) and int(limit) == limit
  except (TypeError, ValueError, OverflowError):  # None, NaN, infinity
    is_integer = False
  if not is_integer or not 0 < limit <= _MAX_LIMIT:
    raise ValueError(
        f"Stack {stack_name!r}: {field} must be an integer in [1,"
        f" {_MAX_LIMIT}], but its table or the function that sets it says"
        f" {limit!r}."
    )
  return int(limit)


def _ignored_limits(
    stack: _tables.StackedTableSpec,
    members: Sequence[_tables.TableSpec],
    limits: StackLimits,
) -> list[str]:
  """A warning if the stack does not keep to limits that its tables set."""
  fields = ("max_ids_per_partition", "max_unique_ids_per_partition")
  ignored = {}
  for field in fields:
    if getattr(limits, field) == LIMITS_OF_TABLES:
      continue
    for table in members:
      if getattr(table, field) not in (
          getattr(stack, field),
          getattr(_tables.TableSpec, field),
      ):
        ignored.setdefault(field, {})[table.name] = getattr(table, field)
  if not ignored:
    return []
  of_stack = ", ".join(f"{field} {getattr(stack, field)}" for field in fields)
  listed = [
      f"the {field} {limit} of table {name!r}"
      for field, by_table in ignored.items()
      for name, limit in by_table.items()
  ]
  of_tables = ", ".join(listed[:_MAX_LISTED])
  if len(listed) > _MAX_LISTED:
    of_tables += f" and {len(listed) - _MAX_LISTED} other limits of its tables"
  remedy = " and ".join(
      f"stack_to_{field}=lambda name, batch: {max(by_table.values())}"
      for field, by_table in ignored.items()
  )
  return [
      f"Stack {stack.stack_name!r} has {of_stack}, and ignores {of_tables}. Stack"
      f" with {remedy}, or whatever its tables need together, or with 'tables', the sum of"
      " their limits."
  ]
