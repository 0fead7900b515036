# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How much memory of a device is free.

Sources: proc_meminfo(5); the kernel's Documentation/admin-guide/cgroup-v2.rst
(memory.max, memory.current, memory.stat) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
import pathlib

import jax

_ROOT = pathlib.Path("/")
# Of version 2, and of version 1, whose limit is a huge number if there is none:
# the directory of controllers, limit, usage, and the pages of files that can be
# dropped.
_VERSIONS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def free_bytes(device: jax.Device) -> int | None:
  """What can be allocated on a device; None if it does not say.

  All CPU devices of a process share what is free: that of the machine, and of
  the control groups that the process is in.
  """
  if device.platform == "cpu":
    return free_bytes_of_host()
  try:
    stats = device.memory_stats()
  except (NotImplementedError, RuntimeError):
    # Of a described topology, or a backend that does not count.
    return None
  if not stats or "bytes_limit" not in stats:
    return None
  return max(0, stats["bytes_limit"] - stats["bytes_in_use"])


def free_bytes_of_host(root: pathlib.Path = _ROOT) -> int | None:
  """The same of the host; None where there is no Linux.

  Args:
    root: of the file system, for tests.
  """
  try:
    lines = (root / "proc/meminfo").read_text().splitlines()
  except OSError:
    return None
  kibibytes = {line.split(":")[0]: line.split()[1] for line in lines if line}
  if "MemAvailable" not in kibibytes:
    return None
  names = ("MemAvailable", "SwapFree")
  free = sum(int(kibibytes.get(name, 0)) * 1024 for name in names)
  return min([free, *_free_bytes_of_groups(root)])


def _free_bytes_of_groups(root: pathlib.Path) -> Iterator[int]:
  """For each group of the process that has a limit."""
  try:
    memberships = (root / "proc/self/cgroup").read_text().splitlines()
  except OSError:
    return
  for line in memberships:
    _, controllers, path = line.split(":", 2)
    directory, *names = _VERSIONS[0] if not controllers else _VERSIONS[1]
    if controllers and "memory" not in controllers.split(","):
      continue
    groups = root / "sys/fs/cgroup" / directory
    own = groups / path.lstrip("/")
    for group in (own, *own.parents):
      free = _free_bytes_of_group(group, *names)
      if free is not None:
        yield free
      if group == groups:
        break


def _free_bytes_of_group(
    group: pathlib.Path, limit: str, usage: str, droppable: str
) -> int | None:
  try:
    most = int((group / limit).read_text())
    used = int((group / usage).read_text())
    stat = dict(
        line.split()
        for line in (group / "memory.stat").read_text().splitlines()
    )
  except (OSError, ValueError):
    # The root has no limit, and "max" is none.
    return None
  return max(0, most - used + int(stat.get(droppable, 0)))
