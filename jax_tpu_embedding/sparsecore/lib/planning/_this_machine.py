# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The CPU of this machine as a chip."""

from __future__ import annotations

import dataclasses
import functools
import time

from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.planning import _row_probe
from jax_tpu_embedding.sparsecore.lib.planning import chips
import numpy as np

_BYTES = 2**27  # beyond the caches of most machines


def chip(num_devices: int) -> chips.Chip:
  """What each of `num_devices` devices has, which share the machine."""
  source = np.ones(_BYTES // 8)
  target = np.empty_like(source)
  best = float("inf")
  for _ in range(5):
    begin = time.perf_counter()
    np.copyto(target, source)
    best = min(best, time.perf_counter() - begin)
  # A copy reads and writes, by one core.
  bandwidth = 2 * _BYTES / best
  memory = free_memory.bytes_of_host()
  num_cpus = hardware.num_schedulable_cpus()
  times = {
      name: dataclasses.replace(
          of_all,
          per_id=of_all.per_id * num_devices,
          per_byte=of_all.per_byte * num_devices,
          per_new_byte=of_all.per_new_byte * num_devices,
      )
      for name, of_all in _row_times(num_cpus).items()
  }
  return chips.Chip(
      name="cpu",
      memory_bytes=memory // num_devices,
      memory_bytes_per_second=bandwidth / num_devices,
      network_bytes_per_second=bandwidth / num_devices,
      flops_per_second=50e9 * num_cpus / num_devices,
      lookup_efficiency=0.85,
      update_efficiency=0.75,
      lookup_times=times["lookup"],
      update_times=times["update"],
      source="copies of 128 MiB by one core of this machine, and its lookups",
  )


@functools.lru_cache(maxsize=1)
def _row_times(num_cpus: int) -> dict[str, chips.RowTimes]:
  """Those of a device that has all of `num_cpus`, which this process has."""
  del num_cpus
  return _row_probe.measure()
