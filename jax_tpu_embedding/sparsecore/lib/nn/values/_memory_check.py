# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether tables fit into memory, before any of it is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import math

import jax
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables
import numpy as np

# How many tables an error names.
_NUM_LARGEST = 3


def check(
    stacks: Mapping[str, Sequence[_tables.TableSpec]],
    num_shards: int,
    num_devices: int,
    devices: Iterable[jax.Device],
    needs: Sequence[int] | None = None,
) -> None:
  """Raises if new variables of these stacks do not fit.

  Args:
    stacks: stack name -> its tables, in the order in which they are made.
    num_shards: SparseCores of the job.
    num_devices: over how many devices rows are split.
    devices: those that get some; those of other processes are not asked.
    needs: of each variable, the bytes of a device while it is made, itself
      among them and those before it not; None: no more than itself.

  Raises:
    MemoryError: naming what is needed and free, and the largest tables.
  """
  devices = tuple(devices)
  of_table = {}
  # Bytes of the variables so far; of a device, in the worst moment.
  total = most = 0
  remaining = iter(needs or ())
  for tables in stacks.values():
    placement = _placement.from_specs(tables, num_shards)
    variables = _variables(tables[0], placement)
    # Of a replicated stack, each device has all rows.
    num_copies = num_devices if tables[0].is_replicated else 1
    for variable in variables:
      if needs is not None:
        most = max(most, total // num_devices + next(remaining))
      total += num_copies * _num_bytes(variable)
    table_bytes, *slot_bytes = (
        _num_bytes(variable) // placement.num_rows for variable in variables
    )
    for table in placement.tables:
      rows = num_copies * table.padded_vocabulary_size
      of_slots = rows * sum(slot_bytes)
      of_table[table.name] = (rows * table_bytes + of_slots, of_slots)
  to_keep = total // num_devices
  per_device = max(most, to_keep)
  local = [d for d in devices if d.process_index == jax.process_index()]
  free = [(free_memory.free_bytes(device), device) for device in local]
  known = [pair for pair in free if pair[0] is not None]
  if not known:
    return
  least, device = min(known, key=lambda pair: pair[0])
  # CPU devices have one memory.
  needed = per_device * (len(local) if device.platform == "cpu" else 1)
  if needed <= least:
    return
  size = readable_text.format_bytes
  largest = sorted(of_table.items(), key=lambda item: -item[1][0])
  names = ", ".join(
      f"{name} {size(both / num_devices)} ({size(slots / num_devices)} of it"
      " slots)"
      for name, (both, slots) in largest[:_NUM_LARGEST]
  )
  while_made = ""
  if per_device > to_keep:
    while_made = f" {size(per_device - to_keep)} of it while they are made,"
  where = "this host, which they share" if needed > per_device else f"{device}"
  raise MemoryError(
      f"The tables need {size(per_device)} on each of {num_devices} devices,"
      f"{while_made} and {size(least)} are free on {where}. Largest, per"
      f" device: {names}."
      " Use more devices, fewer rows or columns, tables of bfloat16, or an"
      " optimizer with smaller slots."
  )


def bytes_on_device(array: jax.ShapeDtypeStruct) -> int:
  """Of a device's part; all of it if there is no sharding."""
  shape = array.shape
  if array.sharding is not None:
    shape = array.sharding.shard_shape(shape)
  return math.prod(shape) * np.dtype(array.dtype).itemsize


def bytes_of_program(program: jax.stages.Compiled) -> int:
  """What a device has while it runs: arguments, results, and all between."""
  found = program.memory_analysis()
  if found is None:  # of a backend that does not say
    return 0
  return (
      found.argument_size_in_bytes
      + found.output_size_in_bytes
      + found.temp_size_in_bytes
      - found.alias_size_in_bytes
  )


def _variables(
    table: _tables.TableSpec, placement: _placement.StackPlacement
) -> list[jax.ShapeDtypeStruct]:
  """The table and the slots of a stack with this one in it, as it is made."""
  rows, columns = placement.num_rows, placement.embedding_dim
  return [
      jax.ShapeDtypeStruct((rows, columns), table.dtype),
      *(
          jax.ShapeDtypeStruct((rows, 1 if is_of_row else columns), np.float32)
          for is_of_row in table.optimizer.slot_variables_of_rows()
      ),
  ]


def _num_bytes(variable: jax.ShapeDtypeStruct) -> int:
  return math.prod(variable.shape) * variable.dtype.itemsize
