# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The machine's class, for the head of a results file."""

from __future__ import annotations

import os
import pathlib
import platform


def describe() -> str:
  """Processor, CPUs and memory, without the machine's name."""
  model = platform.machine()
  for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
    if line.startswith("model name"):
      model = line.partition(":")[2].strip()
      break
  gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
  return f"{model}, {num_cpus()} CPUs, {gib:.0f} GiB"


def num_cpus() -> int:
  """The CPUs that this process may run on."""
  return len(os.sched_getaffinity(0))


def available_memory_bytes() -> int:
  """What new processes can have without swapping."""
  for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
    if line.startswith("MemAvailable:"):
      return 1024 * int(line.split()[1])
  raise RuntimeError("/proc/meminfo has no MemAvailable.")
