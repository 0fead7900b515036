# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How much memory something takes while it runs."""

from __future__ import annotations

import pathlib
import threading


class PeakMemory:
  """In a `with` statement: the most anonymous memory beyond that before it.

  Memory that was freed before and that malloc has kept is not seen when it is
  used again.

  Attributes:
    num_bytes: it. Sampled every 5 ms, so what is shorter may be missed.
  """

  def __enter__(self) -> PeakMemory:
    self._first = self._peak = _anonymous_bytes()
    self._ends = threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._ends.set()
    self._thread.join()

  def _watch(self) -> None:
    while not self._ends.wait(0.005):
      self._peak = max(self._peak, _anonymous_bytes())

  @property
  def num_bytes(self) -> int:
    return self._peak - self._first


def _anonymous_bytes() -> int:
  status = pathlib.Path("/proc/self/status").read_text()
  line = next(x for x in status.splitlines() if x.startswith("RssAnon:"))
  return int(line.split()[1]) * 1024
