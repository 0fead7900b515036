# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import sys
import time
from typing import TypeVar

from jax_tpu_embedding.sparsecore.examples.common import command_line
import tqdm

_SECONDS_BETWEEN_LINES = 5.0

_Item = TypeVar("_Item")


class Progress:
  """A context manager; the bar is closed at its end.

  Args:
    what: the word before the numbers.
    unit: what is counted, in the plural.
    total: how many there are at the end.
    first: how many there are so far; not 0 when a run is resumed.
  """

  def __init__(self, what: str, unit: str, total: int, first: int = 0):
    self._what = what
    self._unit = unit
    self._total = total
    self._first = self._done = first
    self._start = time.monotonic()
    self._line_done, self._line_time = first, self._start
    self._bar = tqdm.tqdm(
        desc=what,
        total=total,
        initial=first,
        unit=f" {unit}",
        unit_scale=True,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    )

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *exception) -> None:
    self._bar.close()

  def update(self, done: int, status: str = "") -> None:
    """Shows that `done` of the total are done."""
    self._bar.set_postfix_str(status, refresh=False)
    self._bar.update(done - self._done)
    self._done = done
    if self._bar.disable:
      self._print_line(status)

  def _print_line(self, status: str) -> None:
    now = time.monotonic()
    seconds = now - self._line_time
    if seconds < _SECONDS_BETWEEN_LINES and self._done < self._total:
      return
    rate = (self._done - self._line_done) / seconds
    command_line.say(
        f"{self._what} {self._done:,}/{self._total:,} {self._unit},"
        f" {rate:,.0f}/s{status and ': '}{status}"
    )
    self._line_done, self._line_time = self._done, now

  def summary(self) -> str:
    """Count, time and rate; evaluations and checkpoints count as time."""
    seconds = time.monotonic() - self._start
    count = self._done - self._first
    return (
        f"{count:,} {self._unit} in {seconds:.1f} s, {count / seconds:,.0f}/s"
    )


class Stopwatch:
  """Measures laps; runs from the start."""

  def __init__(self):
    self._start = time.monotonic()

  def lap(self) -> float:
    """Seconds since the last lap, without pauses; starts a new one."""
    now = time.monotonic()
    seconds, self._start = now - self._start, now
    return seconds

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leaves out what happens in a `with` statement."""
    start = time.monotonic()
    yield
    self._start += time.monotonic() - start


def shown(
    what: str, unit: str, total: int, blocks: Iterable[_Item]
) -> Iterator[_Item]:
  """The same blocks of `unit`, with progress."""
  with Progress(what, unit, total) as progress:
    done = 0
    for block in blocks:
      yield block
      done += len(block)
      progress.update(done)
