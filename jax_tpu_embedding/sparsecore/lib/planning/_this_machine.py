# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The CPU of this machine as a chip."""

from __future__ import annotations

import functools
import time

from jax_tpu_embedding.sparsecore.lib.core import free_memory
from jax_tpu_embedding.sparsecore.lib.core import hardware
from jax_tpu_embedding.sparsecore.lib.planning import _call_probe
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
  times = _times(num_cpus)
  return chips.Chip(
      name="cpu",
      memory_bytes=memory // num_devices,
      memory_bytes_per_second=bandwidth / num_devices,
      network_bytes_per_second=bandwidth / num_devices,
      flops_per_second=50e9 * num_cpus / num_devices,
      lookup_efficiency=0.85,
      update_efficiency=0.75,
      times=chips.MeasuredTimes(
          lookup=times.lookup.shared_by(num_devices),
          update=times.update.shared_by(num_devices),
      ),
      source="copies of 128 MiB by one core of this machine, and its lookups",
  )


@functools.lru_cache(maxsize=1)
def _times(num_cpus: int) -> chips.MeasuredTimes:
  """Those of a device that has all of `num_cpus`, which this process has."""
  del num_cpus
  return _call_probe.measure()
