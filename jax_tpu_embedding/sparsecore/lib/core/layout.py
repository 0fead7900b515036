# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Sizes of the buffers between converter, lookup and update.

The Python view of cc/layout/csr_layout.h; layout_test.py compares the two.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
from typing import NamedTuple

from jax_tpu_embedding.sparsecore.lib.core import constants


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """Devices and SparseCores of a job.

  Attributes:
    local_device_count: devices of this process.
    global_device_count: devices of all processes.
    num_sc_per_device: SparseCores of each of them.

  Raises:
    TypeError: if a count is no integer.
    ValueError: if a count is not positive, or there are more local than global
      devices.
  """

  local_device_count: int
  global_device_count: int
  num_sc_per_device: int

  def __post_init__(self):
    for field in dataclasses.fields(self):
      count = getattr(self, field.name)
      if not isinstance(count, numbers.Integral) or isinstance(count, bool):
        raise TypeError(f"{field.name} must be an integer, got {count!r}.")
      if count <= 0:
        raise ValueError(f"{field.name} must be greater than 0, got {count}.")
    if self.global_device_count < self.local_device_count:
      raise ValueError(
          "global_device_count must be greater than or equal to"
          f" local_device_count, got {self.global_device_count} <"
          f" {self.local_device_count}."
      )

  @property
  def num_scs(self) -> int:
    """SparseCores of the job, which is also the number of table shards."""
    return self.global_device_count * self.num_sc_per_device


class PartitionLimits(NamedTuple):
  """The most that a SparseCore sends to another, of one stack in one pass."""

  max_ids_per_partition: int
  max_unique_ids_per_partition: int  # distinct rows


def round_up(n: int, multiple: int) -> int:
  """The smallest multiple of `multiple` that is at least `n`."""
  return -(-n // multiple) * multiple


def row_pointers_per_block(num_scs: int) -> int:
  """Row pointers of one SparseCore (and minibatch): one per partition, or 8."""
  return max(num_scs, constants.MIN_ROW_POINTERS_PER_BLOCK)


def row_pointers_per_device(
    topology: Topology, enable_minibatching: bool = False
) -> int:
  """Row pointers of one device."""
  num_minibatches = constants.MAX_MINIBATCHES if enable_minibatching else 1
  return (
      row_pointers_per_block(topology.num_scs)
      * topology.num_sc_per_device
      * num_minibatches
  )


def max_coo_cells_per_device(
    max_ids_per_partition: int,
    topology: Topology,
    enable_minibatching: bool = False,
) -> int:
  """Cells of one device that hold any batch within `max_ids_per_partition`."""
  num_minibatches = constants.MAX_MINIBATCHES if enable_minibatching else 1
  return (
      round_up(max_ids_per_partition, constants.ALIGNMENT)
      * topology.num_sc_per_device
      * topology.num_scs
      * num_minibatches
  )


@functools.lru_cache(maxsize=1024)
def num_sc_per_device_from_row_pointers(
    size: int, global_device_count: int, enable_minibatching: bool = False
) -> int:
  """The SparseCores per device whose row pointers have `size` entries.

  The primitives are not told this number; row_pointers_per_device grows with
  it, so the size of the row pointers gives it away.

  Raises:
    ValueError: if no number of SparseCores has that many row pointers.
  """
  num_sc_per_device = 1
  while True:
    topology = Topology(
        local_device_count=1,
        global_device_count=global_device_count,
        num_sc_per_device=num_sc_per_device,
    )
    expected = row_pointers_per_device(topology, enable_minibatching)
    if expected == size:
      return num_sc_per_device
    if expected > size:
      raise ValueError(
          f"row_pointers has {size} entries, which fits no number of"
          f" SparseCores per device on {global_device_count} devices with"
          f" enable_minibatching={enable_minibatching}: {num_sc_per_device} of"
          f" them would have {expected}."
      )
    num_sc_per_device += 1
