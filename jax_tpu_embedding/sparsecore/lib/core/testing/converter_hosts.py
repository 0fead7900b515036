# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Hosts of a job as threads of one process, for tests of the converter."""

from __future__ import annotations

from collections.abc import Callable
import concurrent.futures
import threading
from typing import TypeVar

from jax_tpu_embedding.sparsecore.lib.core import pybind_input_preprocessing as converter

_T = TypeVar("_T")

# Longer than any test; a host that fails early breaks the barrier anyway.
_TIMEOUT_SECONDS = 60.0


class Host(converter.AllReduceInterface):
  """The reductions of one of `num_hosts` hosts."""

  def __init__(self, barrier: threading.Barrier, values: dict[int, list[int]]):
    super().__init__()
    self._barrier = barrier
    self._values = values

  def any_of(self, sync_key: int, value: bool) -> bool:
    return bool(self._reduce(sync_key, value))

  def bitwise_or(self, sync_key: int, value: int) -> int:
    return self._reduce(sync_key, value)

  def _reduce(self, sync_key: int, value: int) -> int:
    self._values.setdefault(sync_key, []).append(value)
    self._barrier.wait()
    result = 0
    for other in self._values[sync_key]:
      result |= other
    return result


def run_hosts(num_hosts: int, run: Callable[[int, Host], _T]) -> list[_T]:
  """Returns run(h, host h) of all hosts, which run at the same time."""
  barrier = threading.Barrier(num_hosts, timeout=_TIMEOUT_SECONDS)
  values = {}

  def run_one(h: int) -> _T:
    try:
      return run(h, Host(barrier, values))
    except BaseException:
      barrier.abort()
      raise

  with concurrent.futures.ThreadPoolExecutor(num_hosts) as threads:
    return list(threads.map(run_one, range(num_hosts)))
