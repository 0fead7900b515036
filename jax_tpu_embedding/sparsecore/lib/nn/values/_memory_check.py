# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether tables fit into memory, before any of it is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

import jax
from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import readable_text
from jax_tpu_embedding.sparsecore.lib.nn.plan import _placement
from jax_tpu_embedding.sparsecore.lib.nn.specs import _tables

# How many tables an error names.
_NUM_LARGEST = 3
_SLOT_BYTES = 4


def check(
    stacks: Mapping[str, Sequence[_tables.TableSpec]],
    num_shards: int,
    num_devices: int,
    devices: Iterable[jax.Device],
) -> None:
  """Raises if new variables of these stacks do not fit.

  Args:
    stacks: stack name -> its tables.
    num_shards: SparseCores of the job.
    num_devices: over how many devices rows are split.
    devices: those that get some; those of other processes are not asked.

  Raises:
    MemoryError: naming what is needed and free, and the largest tables.
  """
  of_table = {}
  total = 0
  for tables in stacks.values():
    placement = _placement.from_specs(tables, num_shards)
    of_slots = _bytes_of_slots(tables[0], placement.embedding_dim)
    of_row = placement.embedding_dim * tables[0].dtype.itemsize
    total += placement.num_rows * (of_row + of_slots)
    for table in placement.tables:
      rows = table.padded_vocabulary_size
      of_table[table.name] = (rows * (of_row + of_slots), rows * of_slots)
  per_device = total // num_devices
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
  where = "this host, which they share" if needed > per_device else f"{device}"
  raise MemoryError(
      f"The tables need {size(per_device)} on each of {num_devices} devices,"
      f" and {size(least)} are free on {where}. Largest, per device: {names}."
      " Use more devices, fewer rows or columns, tables of bfloat16, or an"
      " optimizer with smaller slots."
  )


def _bytes_of_slots(table: _tables.TableSpec, embedding_dim: int) -> int:
  """Of one row, padded to `embedding_dim` columns."""
  return sum(
      _SLOT_BYTES * (1 if is_of_row else embedding_dim)
      for is_of_row in table.optimizer.slot_variables_of_rows()
  )
