# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The plan of a model as a value that people can read and draw.

What it is made of: _report_stacks.py. As a picture: _report_picture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import os
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.nn.plan import _planner
from jax_tpu_embedding.sparsecore.lib.nn.plan import _prepared
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report_picture
from jax_tpu_embedding.sparsecore.lib.nn.plan import _report_stacks
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

_STACK_COLUMNS = (
    "stack",
    "tables",
    "rows x columns",
    "slots",
    "per device",
    "per SC",
    "padding",
    "",
    "activations per SC",
    "ids",
    "unique",
    "buffer cells",
)
# Tables of fewer rows may be faster as products with one-hot matrices.
_SMALL_TABLE_ROWS = 4096
_WHY_REPLICATED = "Its placement is 'tensorcore': each device has all of it."
# Buffers beyond that many times the ids of a batch are worth a hint.
_MUCH_ROOM = 10
_TABLE_COLUMNS = (
    "table",
    "in stack",
    "rows x columns",
    "with padding",
    "padding rows",
    "",
    "row offset",
    "rotation",
    "features",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackingPlan:
  """All stacks of a model, on one topology.

  Attributes:
    global_device_count: devices that share the tables.
    num_sc_per_device: SparseCores per device.
    stacks: in the order in which features first name them.
    small_tables: names of tables that are split over devices, and so small
      that placement "tensorcore" may be faster.
  """

  global_device_count: int
  num_sc_per_device: int
  stacks: tuple[_report_stacks.StackInPlan, ...]
  small_tables: tuple[str, ...] = ()

  @property
  def num_shards(self) -> int:
    return self.global_device_count * self.num_sc_per_device

  @property
  def num_bytes(self) -> int:
    return sum(stack.num_bytes for stack in self.stacks)

  @property
  def num_padding_bytes(self) -> int:
    return sum(stack.num_padding_bytes for stack in self.stacks)

  def describe(self) -> str:
    """The plan as text: sizes, padding, limits, and why stacks are apart."""
    return _describe(self)

  def plot(self, path: str | os.PathLike[str]) -> None:
    """Draws the plan: stacks to scale, and what they take of a device.

    Args:
      path: the file to write; its suffix says the format (.png, .svg, .pdf).

    Raises:
      ImportError: if matplotlib is not there. It comes with the extra `plots`.
    """
    figure(self).savefig(path, dpi=150)


def get_plan(
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
    num_sc_per_device: int | None = None,
) -> StackingPlan:
  """The plan that prepared feature specs hold. Changes nothing.

      embedding.auto_stack_tables(features, 8, 4)
      embedding.prepare_feature_specs_for_training(features, 8, 4)
      print(embedding.get_plan(features, 8, 4).describe())

  Args:
    feature_specs: a tree of FeatureSpecs.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores per device; default: those of the first JAX
      device.

  Raises:
    ValueError: if a table is not stacked, or was for another topology.
  """
  num_sc_per_device = hardware.resolve_num_sc_per_device(num_sc_per_device)
  tables = _prepared.get_table_specs(feature_specs)
  stacks = _prepared.get_stacked_table_specs(feature_specs)
  _tables.check_planned_for(
      list(tables.values()), global_device_count * num_sc_per_device
  )
  reports = _planner.explain(
      feature_specs,
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
  )
  buffers = _prepared.compute_coo_buffer_size_per_device(
      feature_specs, global_device_count, num_sc_per_device
  )
  return StackingPlan(
      global_device_count=global_device_count,
      num_sc_per_device=num_sc_per_device,
      stacks=tuple(
          _report_stacks.StackInPlan(
              name=name,
              num_rows=stack.stack_vocab_size,
              num_columns=stack.stack_embedding_dim,
              num_slots=stack.optimizer.slot_variables_count(),
              num_row_slots=sum(stack.optimizer.slot_variables_of_rows()),
              table_value_bytes=stack.dtype.itemsize,
              tables=_tables_of(name, feature_specs, tables.values()),
              num_samples=stack.total_sample_count,
              activation_bytes_per_sc=_activation_bytes(stack)
              // global_device_count
              if stack.is_replicated
              else reports[name].activation_bytes_per_sc,
              activation_mem_bytes_limit=stack.activation_mem_bytes_limit,
              max_ids_per_partition=stack.max_ids_per_partition,
              max_unique_ids_per_partition=stack.max_unique_ids_per_partition,
              coo_buffer_size_per_device=buffers.get(name, 0),
              ids_per_device=_ids_per_device(
                  name, feature_specs, global_device_count
              ),
              why_apart=_WHY_REPLICATED
              if stack.is_replicated
              else reports[name].why_apart,
              is_replicated=stack.is_replicated,
              num_devices=global_device_count,
          )
          for name, stack in stacks.items()
      ),
      small_tables=tuple(
          table.name
          for table in tables.values()
          if not table.is_replicated
          and table.vocabulary_size < _SMALL_TABLE_ROWS
      ),
  )


def figure(plan: StackingPlan) -> Any:
  """The picture of a plan, a matplotlib Figure."""
  return _report_picture.figure(
      plan.stacks,
      num_shards=plan.num_shards,
      num_devices=plan.global_device_count,
      title=_summarize(plan),
  )


def _activation_bytes(stack: _tables.StackedTableSpec) -> int:
  """Of a global batch, in float32."""
  return 4 * stack.total_sample_count * stack.stack_embedding_dim


def _ids_per_device(
    stack_name: str,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    global_device_count: int,
) -> int | None:
  shapes = [
      feature.input_shape
      for feature in jax.tree.leaves(feature_specs)
      if feature.table_spec.setting_in_stack.stack_name == stack_name
  ]
  if any(not isinstance(n, int) or n < 0 for shape in shapes for n in shape):
    return None
  return math.ceil(sum(map(math.prod, shapes)) / global_device_count)


def _tables_of(
    stack_name: str,
    feature_specs: _tables.Nested[_tables.FeatureSpec],
    tables: Sequence[_tables.TableSpec],
) -> tuple[_report_stacks.TableInPlan, ...]:
  members = [
      table
      for table in tables
      if table.setting_in_stack.stack_name == stack_name
  ]
  members.sort(key=lambda table: table.setting_in_stack.row_offset_in_shard)
  return tuple(
      _report_stacks.TableInPlan(
          name=table.name,
          vocabulary_size=table.vocabulary_size,
          embedding_dim=table.embedding_dim,
          padded_vocabulary_size=table.setting_in_stack.padded_vocab_size,
          padded_embedding_dim=table.setting_in_stack.padded_embedding_dim,
          row_offset_in_shard=table.setting_in_stack.row_offset_in_shard,
          shard_rotation=table.setting_in_stack.shard_rotation,
          feature_names=tuple(
              feature.name
              for feature in jax.tree.leaves(feature_specs)
              if feature.table_spec.name == table.name
          ),
      )
      for table in members
  )


def _describe(plan: StackingPlan) -> str:
  """Two tables, of stacks and of tables, and a sentence for each stack."""
  lines = [
      _summarize(plan),
      "",
      *readable_text.align(
          [_STACK_COLUMNS, *(_stack_row(plan, s) for s in plan.stacks)]
      ),
      "",
      "Sizes include slots. Padding, activations and buffers: those of one"
      " device or SparseCore (SC). ids, unique: limits per partition.",
      *_empty_buffers(plan),
      "",
      *readable_text.align(
          [
              _TABLE_COLUMNS,
              *(_table_row(s, t) for s in plan.stacks for t in s.tables),
          ],
          left=(0, 1, 8),
      ),
      "",
      "Why stacks are apart:",
      *(f"  {stack.name}: {stack.why_apart}" for stack in plan.stacks),
      *_suggestions(plan),
  ]
  return "\n".join(lines)


def _empty_buffers(plan: StackingPlan) -> list[str]:
  """What is known of how much of their buffers batches fill."""
  lines = []
  stacks = [stack for stack in plan.stacks if not stack.is_replicated]
  for stack in stacks:
    cells, ids = stack.coo_buffer_size_per_device, stack.ids_per_device
    if ids is not None:
      # Rounded down: none that holds an id is 100% empty.
      empty = 100 * max(cells - ids, 0) // cells
      lines.append(
          f"  {stack.name}: {cells} cells for {ids} ids of a batch, {empty}%"
          " empty"
      )
  if not lines:
    return []
  if any(
      stack.ids_per_device is not None
      and stack.coo_buffer_size_per_device
      > _MUCH_ROOM * max(stack.ids_per_device, 8 * plan.num_shards)
      for stack in stacks
  ):
    lines.append("  embedding.AdaptiveLimits takes limits from the batches.")
  return ["", "Buffers of a device:", *lines]


def _suggestions(plan: StackingPlan) -> list[str]:
  """What might be faster, and only a measurement tells."""
  if not plan.small_tables:
    return []
  return [
      "",
      f"Below {_SMALL_TABLE_ROWS} rows, placement='tensorcore' may be faster:",
      f"  {', '.join(plan.small_tables)}",
  ]


def _summarize(plan: StackingPlan) -> str:
  """The plan in a line."""
  num_tables = sum(len(stack.tables) for stack in plan.stacks)
  total = readable_text.format_bytes(plan.num_bytes / plan.global_device_count)
  percent = _percent(plan.num_padding_bytes, plan.num_bytes)
  return (
      f"{_count(num_tables, 'table')} in {_count(len(plan.stacks), 'stack')} on"
      f" {_count(plan.global_device_count, 'device')} x"
      f" {_count(plan.num_sc_per_device, 'SparseCore')}: {total} per device,"
      f" {percent} of it padding"
  )


def _stack_row(
    plan: StackingPlan, stack: _report_stacks.StackInPlan
) -> tuple[str, ...]:
  activations = readable_text.format_bytes(stack.activation_bytes_per_sc)
  limit = readable_text.format_bytes(stack.activation_mem_bytes_limit)
  # What splits rows over SparseCores, and sends ids to them.
  per_sc = readable_text.format_bytes(stack.num_bytes / plan.num_shards)
  sends = (
      f"{activations} of {limit}",
      str(stack.max_ids_per_partition),
      str(stack.max_unique_ids_per_partition),
      str(stack.coo_buffer_size_per_device),
  )
  if stack.is_replicated:
    per_sc, sends = "-", (activations, "-", "-", "-")
  return (
      stack.name,
      str(len(stack.tables)),
      f"{stack.num_rows} x {stack.num_columns}",
      str(stack.num_slots),
      readable_text.format_bytes(stack.num_bytes / plan.global_device_count),
      per_sc,
      readable_text.format_bytes(
          stack.num_padding_bytes / plan.global_device_count
      ),
      _percent(stack.num_padding_bytes, stack.num_bytes),
      *sends,
  )


def _table_row(
    stack: _report_stacks.StackInPlan, table: _report_stacks.TableInPlan
) -> tuple[str, ...]:
  padding = table.num_padded_values - table.num_values
  return (
      table.name,
      stack.name,
      f"{table.vocabulary_size} x {table.embedding_dim}",
      f"{table.padded_vocabulary_size} x {table.padded_embedding_dim}",
      str(table.padded_vocabulary_size - table.vocabulary_size),
      _percent(padding, table.num_padded_values),
      str(table.row_offset_in_shard),
      str(table.shard_rotation),
      ", ".join(table.feature_names),
  )


def _percent(part: int, whole: int) -> str:
  if 0 < 200 * part < whole:
    return "<1%"
  return f"{100 * part / whole:.0f}%" if whole else "0%"


def _count(n: int, noun: str) -> str:
  return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
