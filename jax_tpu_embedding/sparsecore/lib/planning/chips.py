# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a device of each kind has, and topologies by their names.

A row per kind. Numbers of TPUs are those of jax.experimental.pallas.tpu's
get_tpu_info (memory, bandwidth, peak of one core, times the cores of a device;
`check` asks the same, and a test compares them) and, for the network between
chips, of the vendor's pages; of GPUs those of the vendor. Cycles per second of
v6e and tpu7x are peak / 524,288, the most that libtpu's estimates have in a
cycle there; those of v5p peak / 262,144. None of them was measured here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Self

_GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallTimes:
  """Seconds of a lookup or an update of a stack, by what is in its batch.

  Attributes:
    per_call: whatever is in the batch.
    per_id: of each id, whatever its row.
    per_byte: of the row that belongs to an id, in a cache: a lookup reads it of
      the table, an update of the gradient.
    per_new_row: of each row that the batch names, for the first time: it comes
      from memory, and an update writes it. Its rows of slots are more of them.
    per_new_byte: of such a row.
    per_sample_byte: of the activations that a lookup writes, and of the
      gradient, when an update reads it for the first time.
  """

  per_call: float
  per_id: float
  per_byte: float
  per_new_row: float
  per_new_byte: float
  per_sample_byte: float

  def seconds(
      self,
      *,
      num_ids: float,
      id_bytes: float,
      new_rows: float,
      new_bytes: float,
      sample_bytes: float,
  ) -> float:
    """Of a batch.

    Args:
      num_ids: ids.
      id_bytes: of the rows that belong to ids, all together.
      new_rows: distinct ones, with the rows of slots that an update writes.
      new_bytes: of these, all together.
      sample_bytes: of activations, or of their gradient.
    """
    return (
        self.per_call
        + num_ids * self.per_id
        + id_bytes * self.per_byte
        + new_rows * self.per_new_row
        + new_bytes * self.per_new_byte
        + sample_bytes * self.per_sample_byte
    )

  def shared_by(self, num_devices: int) -> Self:
    """Those of a device of several, which divide the machine among them."""
    return dataclasses.replace(
        self,
        per_id=self.per_id * num_devices,
        per_byte=self.per_byte * num_devices,
        per_new_row=self.per_new_row * num_devices,
        per_new_byte=self.per_new_byte * num_devices,
        per_sample_byte=self.per_sample_byte * num_devices,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredTimes:
  """What was measured of a device."""

  lookup: CallTimes
  update: CallTimes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """A device, as JAX sees it.

  Attributes:
    name: in topologies.
    devices_per_chip: what JAX makes of a chip.
    num_sc: SparseCores of a device; 1 where there are none.
    memory_bytes: of a device.
    memory_bytes_per_second: from its memory.
    network_bytes_per_second: to other devices, all links together.
    flops_per_second: of matrix products of bfloat16.
    float32_flops_per_second: of those of float32; 0: on TPUs, where they are
      six of bfloat16, a sixth of that; elsewhere as many.
    cycles_per_second: of the TensorCore; 0 where nothing is estimated in it.
    max_unique_ids_per_partition: the largest power of two that the compiler was
      seen to take, with 128 columns; None: no limit is known.
    lookup_efficiency: share of the bandwidth that lookups are taken to have.
    update_efficiency: the same of updates.
    times: of lookups and updates, where they were measured: on CPUs. They take
      the place of bandwidth and efficiency.
    source: of the numbers.
  """

  name: str
  devices_per_chip: int = 1
  num_sc: int = 1
  memory_bytes: int
  memory_bytes_per_second: float
  network_bytes_per_second: float
  flops_per_second: float
  float32_flops_per_second: float = 0.0
  cycles_per_second: float = 0.0
  max_unique_ids_per_partition: int | None = None
  lookup_efficiency: float = 0.5
  update_efficiency: float = 0.5
  times: MeasuredTimes | None = None
  source: str

  @property
  def is_tpu(self) -> bool:
    return self.cycles_per_second > 0

  @property
  def float32_products_per_second(self) -> float:
    """Multiplications and additions, each one, of matrix products of float32."""
    passes = 6 if self.is_tpu else 1
    return self.float32_flops_per_second or self.flops_per_second / passes


_TPU_SOURCE = "pltpu.get_tpu_info; network: cloud.google.com/tpu/docs"
_GPU_SOURCE = "nvidia.com, data sheet of the SXM module"

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="v5p",
            num_sc=4,
            memory_bytes=103 * 10**9,
            memory_bytes_per_second=2.46e12,
            network_bytes_per_second=600e9,
            flops_per_second=459e12,
            cycles_per_second=1.75e9,
            max_unique_ids_per_partition=4096,
            source=_TPU_SOURCE,
        ),
        Chip(
            name="v6e",
            num_sc=2,
            memory_bytes=344 * 10**8,
            memory_bytes_per_second=1.64e12,
            network_bytes_per_second=448e9,
            flops_per_second=920e12,
            cycles_per_second=1.75e9,
            max_unique_ids_per_partition=4096,
            source=_TPU_SOURCE,
        ),
        Chip(
            name="tpu7x",
            devices_per_chip=2,
            num_sc=2,
            memory_bytes=103 * 10**9,
            memory_bytes_per_second=3.7e12,
            network_bytes_per_second=600e9,
            flops_per_second=1155e12,
            cycles_per_second=2.2e9,
            source=_TPU_SOURCE,
        ),
        Chip(
            name="h100",
            memory_bytes=80 * _GIB,
            memory_bytes_per_second=3.35e12,
            network_bytes_per_second=450e9,
            flops_per_second=989e12,
            float32_flops_per_second=67e12,
            lookup_efficiency=0.8,
            update_efficiency=0.8,
            source=_GPU_SOURCE,
        ),
        Chip(
            name="h200",
            memory_bytes=141 * 10**9,
            memory_bytes_per_second=4.8e12,
            network_bytes_per_second=450e9,
            flops_per_second=989e12,
            float32_flops_per_second=67e12,
            lookup_efficiency=0.8,
            update_efficiency=0.8,
            source=_GPU_SOURCE,
        ),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """Devices of one kind.

  Attributes:
    name: as it was asked for.
    chip: of each.
    num_devices: of all processes.
  """

  name: str
  chip: Chip
  num_devices: int

  @property
  def num_scs(self) -> int:
    return self.num_devices * self.chip.num_sc


def topology(name: str) -> Topology:
  """The topology of a name: "v6e:4x4", "tpu7x:2x2x1", "h100:8", "cpu:4".

  The sizes are those of chips, as in names of TPU slices. Devices of a CPU
  share the machine that this runs on. What it takes to look up and update rows
  is measured for that, once, in a process that takes some seconds.

  Raises:
    ValueError: if the name is none.
  """
  match = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
  if match is None:
    raise ValueError(
        f"A topology is a chip and a size, like 'v6e:4x4' or 'cpu:4', got"
        f" {name!r}."
    )
  kind, size = match.groups()
  num_chips = math.prod(map(int, size.split("x")))
  if not num_chips:
    raise ValueError(f"Topology {name!r} has no devices.")
  if kind == "cpu":
    # Here, since it measures.
    from jax_tpu_embedding.sparsecore.lib.planning import _this_machine

    chip = _this_machine.chip(num_chips)
  elif kind in CHIPS:
    chip = CHIPS[kind]
  else:
    raise ValueError(
        f"Topology {name!r}: there is no chip {kind!r}. Known are"
        f" {', '.join(sorted([*CHIPS, 'cpu']))}; chips.py has a row for each."
    )
  return Topology(
      name=name, chip=chip, num_devices=num_chips * chip.devices_per_chip
  )
