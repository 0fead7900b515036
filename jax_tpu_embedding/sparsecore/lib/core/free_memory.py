# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How much memory a host has, and how much of a device's is free.

Sources: proc_meminfo(5); the kernel's Documentation/admin-guide/cgroup-v2.rst
(memory.max, memory.current, memory.stat) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
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


def bytes_of_host(root: pathlib.Path = _ROOT) -> int:
  """What the process could have at most if nobody else had anything.

  Args:
    root: of the file system, for tests.
  """
  most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  limits = (_number(group / limit) for group, limit, *_ in _groups(root))
  return min([most, *(limit for limit in limits if limit is not None)])


def _free_bytes_of_groups(root: pathlib.Path) -> Iterator[int]:
  """For each group of the process that has a limit."""
  for group, *names in _groups(root):
    free = _free_bytes_of_group(group, *names)
    if free is not None:
      yield free


def _groups(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, str, str, str]]:
  """The process's groups and those around them, with the names of their files."""
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
      yield group, *names
      if group == groups:
        break


def _free_bytes_of_group(
    group: pathlib.Path, limit: str, usage: str, droppable: str
) -> int | None:
  most, used = _number(group / limit), _number(group / usage)
  try:
    lines = (group / "memory.stat").read_text().splitlines()
  except OSError:
    return None
  if most is None or used is None:
    return None
  stat = dict(line.split() for line in lines)
  return max(0, most - used + int(stat.get(droppable, 0)))


def _number(file: pathlib.Path) -> int | None:
  """None where there is no such file, as in the root, and for "max"."""
  try:
    return int(file.read_text())
  except (OSError, ValueError):
    return None
