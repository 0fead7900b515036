# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What could be better about a model on a topology. A rule is a function."""

from __future__ import annotations

from collections.abc import Iterator
import math

from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.planning import _costs

_ALIGNMENT = 8  # columns, and rows of a SparseCore
_MUCH_LOAD = 1.5
_MUCH_OF_A_STEP = 0.05
_LITTLE_BYTES = 2**20
_MAX_NAMES = 4


def suggestions(costs: _costs.ModelCost) -> tuple[str, ...]:
  """A sentence or two for each rule that applies, with what it gains."""
  return tuple(line for rule in _RULES for line in rule(costs))


def _width(costs: _costs.ModelCost) -> Iterator[str]:
  names, padding = [], 0.0
  for stack in costs.plan.stacks:
    for table in stack.tables:
      if table.embedding_dim % _ALIGNMENT:
        names.append(f"{table.name!r} ({table.embedding_dim})")
        columns = table.padded_embedding_dim - table.embedding_dim
        values = stack.num_copies * columns * table.padded_vocabulary_size
        padding += values * stack.table_value_bytes
  if names:
    yield (
        f"Columns that are no multiple of {_ALIGNMENT} are padded, in"
        f" {_some(names)}: {readable_text.format_bytes(padding / costs.topology.num_devices)} of"
        " each device, without slots."
    )


def _load(costs: _costs.ModelCost) -> Iterator[str]:
  for stack in costs.stacks:
    if stack.load > _MUCH_LOAD and costs.topology.num_scs > 1:
      yield (
          f"Stack {stack.name!r}: one SparseCore has {stack.load:.1f} times the"
          " entries of the mean, and the others wait for it. Another rotation"
          " or a table by itself spreads popular rows; at best that gains"
          f" {_percent(1 - 1 / stack.load)} of its time."
      )


def _few_rows(costs: _costs.ModelCost) -> Iterator[str]:
  least = _ALIGNMENT * costs.topology.num_scs
  names, rows, padded = [], 0, 0
  for stack in costs.plan.stacks:
    for table in stack.tables:
      if table.vocabulary_size < least and not stack.is_replicated:
        names.append(f"{table.name!r} ({table.vocabulary_size})")
        rows += table.vocabulary_size
        padded += table.padded_vocabulary_size
  if names:
    yield (
        f"Tables with fewer than {least} rows, {_ALIGNMENT} for each"
        f" SparseCore: {_some(names)}. They have {padded} rows with padding; as"
        f" dense parameters they have {rows}, and need no lookup. With"
        " placement='tensorcore' every device has them, and nothing is sent for"
        " a lookup."
    )


def _slots(costs: _costs.ModelCost) -> Iterator[str]:
  slots = sum(stack.slot_bytes for stack in costs.stacks)
  at_rest = sum(stack.bytes_at_rest for stack in costs.stacks)
  padding = sum(stack.padding_bytes for stack in costs.stacks)
  # Slots with one number per row are small already.
  if slots >= at_rest - slots - padding and slots > _LITTLE_BYTES:
    rows = sum(
        4
        * stack.num_copies
        * table.vocabulary_size
        / costs.topology.num_devices
        for stack in costs.plan.stacks
        for table in stack.tables
    )
    yield (
        f"Slots are {_percent(slots / at_rest)} of what tables take, and"
        f" row-wise Adagrad saves {readable_text.format_bytes(slots - rows)} of each device."
    )


def _memory(costs: _costs.ModelCost) -> Iterator[str]:
  chip = costs.topology.chip
  needed = costs.bytes_per_device()
  if needed <= chip.memory_bytes:
    return
  at_rest = sum(stack.bytes_at_rest for stack in costs.stacks)
  others = needed - at_rest
  num_devices = costs.topology.num_devices
  if others >= chip.memory_bytes:
    yield (
        f"Batches and dense parameters take {readable_text.format_bytes(others)} of"
        f" {readable_text.format_bytes(chip.memory_bytes)}: more devices do not help, a smaller"
        " batch does."
    )
    return
  # More devices have as much of replicated tables.
  copies = sum(x.bytes_at_rest for x in costs.stacks if x.limits is None)
  room = chip.memory_bytes - others - copies
  if room <= 0:
    yield (
        f"Tables with placement 'tensorcore' take"
        f" {readable_text.format_bytes(copies)} of each device: more devices do"
        " not help, placement 'sparsecore' does."
    )
    return
  enough = math.ceil((at_rest - copies) * num_devices / room)
  yield (
      f"A device has {readable_text.format_bytes(chip.memory_bytes)}, and {readable_text.format_bytes(needed)} are needed:"
      f" {readable_text.format_bytes(needed - chip.memory_bytes)} too much. {enough} devices or more"
      " have room for the tables."
  )


def _ceiling(costs: _costs.ModelCost) -> Iterator[str]:
  most = costs.topology.chip.max_unique_ids_per_partition
  for stack in costs.stacks:
    if stack.needs is None:
      continue
    needed = stack.needs.max_unique_ids_per_partition
    if most and needed > most:
      yield (
          f"Stack {stack.name!r}: partitions have {needed} distinct rows, and"
          f" the compiler was seen to take {most}. Enable minibatching:"
          f" {stack.num_minibatches} passes; more devices or a smaller batch"
          " take one."
      )


def _host(costs: _costs.ModelCost) -> Iterator[str]:
  cores = hardware.num_schedulable_cpus()
  device = costs.lookup_seconds + costs.update_seconds
  if costs.dense_seconds is not None:
    device = costs.step_seconds("off")
  if costs.host_seconds / cores > device:
    yield (
        f"Preprocessing takes {costs.host_seconds * 1e3:.2f} ms of a core for"
        f" each device and batch, and the device's step {device * 1e3:.2f} ms:"
        f" {math.ceil(costs.host_seconds / device)} cores for each device keep"
        " up, or raw ids inside jit."
    )


def _mode(costs: _costs.ModelCost) -> Iterator[str]:
  if costs.dense_seconds is None:
    return
  off, exact, stale = (
      costs.step_seconds(mode) for mode in ("off", "exact", "stale")
  )
  if off - exact > _MUCH_OF_A_STEP * off:
    yield (
        f"pipelined(mode='exact') takes {_percent(1 - exact / off)} off the step,"
        " with the same numbers."
    )
  if exact - stale > _MUCH_OF_A_STEP * exact:
    yield (
        f"pipelined(mode='stale') takes {_percent(1 - stale / exact)} off that,"
        " and activations miss an update."
    )


_RULES = (
    _width,
    _load,
    _few_rows,
    _slots,
    _memory,
    _ceiling,
    _host,
    _mode,
)


def _some(names: list[str]) -> str:
  if len(names) <= _MAX_NAMES:
    return ", ".join(names)
  return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"


def _percent(share: float) -> str:
  return f"{share:.0%}"
