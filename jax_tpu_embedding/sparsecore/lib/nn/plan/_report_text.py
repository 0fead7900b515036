# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A stacking plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jax_tpu_embedding.sparsecore.lib.nn.plan import _report


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


def describe(plan: _report.StackingPlan) -> str:
  """Two tables, of stacks and of tables, and a sentence for each stack."""
  lines = [
      summarize(plan),
      "",
      *_align([_STACK_COLUMNS, *(_stack_row(plan, s) for s in plan.stacks)]),
      "",
      "Sizes include slots. Padding, activations and buffers: those of one"
      " device or SparseCore (SC). ids, unique: limits per partition.",
      *_empty_buffers(plan),
      "",
      *_align(
          [
              _TABLE_COLUMNS,
              *(_table_row(s, t) for s in plan.stacks for t in s.tables),
          ],
          left=(0, 1, 8),
      ),
      "",
      "Why stacks are apart:",
      *(f"  {stack.name}: {stack.why_apart}" for stack in plan.stacks),
  ]
  return "\n".join(lines)


def _empty_buffers(plan: _report.StackingPlan) -> list[str]:
  """What is known of how much of their buffers batches fill."""
  lines = []
  for stack in plan.stacks:
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
      for stack in plan.stacks
  ):
    lines.append("  embedding.AdaptiveLimits takes limits from the batches.")
  return ["", "Buffers of a device:", *lines]


def summarize(plan: _report.StackingPlan) -> str:
  """The plan in a line."""
  num_tables = sum(len(stack.tables) for stack in plan.stacks)
  total = format_bytes(plan.num_bytes / plan.global_device_count)
  percent = _percent(plan.num_padding_bytes, plan.num_bytes)
  return (
      f"{_count(num_tables, 'table')} in {_count(len(plan.stacks), 'stack')} on"
      f" {_count(plan.global_device_count, 'device')} x"
      f" {_count(plan.num_sc_per_device, 'SparseCore')}: {total} per device,"
      f" {percent} of it padding"
  )


def format_bytes(num_bytes: float) -> str:
  """As 512 B, 1.5 KiB, 20 MiB."""
  for unit in ("B", "KiB", "MiB", "GiB"):
    if num_bytes < 1024:
      break
    num_bytes /= 1024
  else:
    unit = "TiB"
  digits = 0 if unit == "B" or num_bytes >= 100 else 1
  return f"{num_bytes:.{digits}f} {unit}"


def _stack_row(
    plan: _report.StackingPlan, stack: _report.StackInPlan
) -> tuple[str, ...]:
  limit = format_bytes(stack.activation_mem_bytes_limit)
  return (
      stack.name,
      str(len(stack.tables)),
      f"{stack.num_rows} x {stack.num_columns}",
      str(stack.num_slots),
      format_bytes(stack.num_bytes / plan.global_device_count),
      format_bytes(stack.num_bytes / plan.num_shards),
      format_bytes(stack.num_padding_bytes / plan.global_device_count),
      _percent(stack.num_padding_bytes, stack.num_bytes),
      f"{format_bytes(stack.activation_bytes_per_sc)} of {limit}",
      str(stack.max_ids_per_partition),
      str(stack.max_unique_ids_per_partition),
      str(stack.coo_buffer_size_per_device),
  )


def _table_row(
    stack: _report.StackInPlan, table: _report.TableInPlan
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


def _align(
    rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> list[str]:
  """Lines of columns, aligned to the right except for those in `left`."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return [
      "  ".join(
          cell.ljust(width) if i in left else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(row, widths))
      ).rstrip()
      for row in rows
  ]
