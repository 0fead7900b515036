# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How far a save, restore, conversion or check is: a line on a terminal.

    saving: 1.2 of 9.1 GiB (13%), 310 MiB/s, 26 s left

It appears after two seconds, and is gone at the end. Where standard error is no
terminal there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import sys
import time
from typing import Any
from typing import TextIO

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.core import jax_private
from jax_tpu_embedding.sparsecore.lib.core import readable_text
import numpy as np

_SECONDS_UNTIL_SHOWN = 2.0
_SECONDS_BETWEEN = 0.2
# Back to the begin of the line, and the line empty.
_CLEAR = "\r\x1b[K"


class Progress:
  """A context manager.

  Args:
    what: what is done, such as "saving".
    total_bytes: how much there is to do.
    out: the terminal; default: standard error. One that cannot be written to
      shows nothing.
    clock: seconds, for tests.
  """

  def __init__(
      self,
      what: str,
      total_bytes: int,
      out: TextIO | None = None,
      clock: Callable[[], float] = time.monotonic,
  ):
    self._what = what
    self._total = total_bytes
    self._out = sys.stderr if out is None else out
    self._clock = clock
    # One of several processes tells it. JAX is not asked for any device.
    self._is_shown = (
        _is_terminal(self._out) and jax_private.place_in_job()[0] == 0
    )
    self._done = 0
    self._begin = clock()
    self._next = self._begin + _SECONDS_UNTIL_SHOWN

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *_: Any) -> None:
    if self._is_shown and self._next > self._begin + _SECONDS_UNTIL_SHOWN:
      self._write(_CLEAR)

  def add(self, num_bytes: int) -> None:
    """So many more are done."""
    self._done += num_bytes
    now = self._clock()
    if not self._is_shown or now < self._next or not self._done:
      return
    self._next = now + _SECONDS_BETWEEN
    rate = self._done / (now - self._begin)
    left = max(0, self._total - self._done) / rate
    size = readable_text.format_bytes
    self._write(
        f"{_CLEAR}{self._what}: {size(self._done)} of {size(self._total)}"
        f" ({self._done / max(self._total, 1):.0%}), {size(rate)}/s,"
        f" {_duration(left)} left"
    )

  def of(self, source: _row_blocks.RowSource) -> _row_blocks.RowSource:
    """The same rows; they are done when the next ones are asked for."""
    return _Counted(source, self)

  def _write(self, text: str) -> None:
    try:
      self._out.write(text)
      self._out.flush()
    except (OSError, ValueError):
      # The terminal is gone, and what is done goes on.
      self._is_shown = False


class _Counted:

  def __init__(self, source: _row_blocks.RowSource, progress: Progress):
    self._source = source
    self._progress = progress
    self.rows = source.rows
    self.columns = source.columns
    self.dtype = source.dtype
    self.block_rows = source.block_rows

  def blocks(
      self, ranges: Sequence[_row_blocks.Range]
  ) -> Iterator[tuple[int, np.ndarray]]:
    for first, values in self._source.blocks(ranges):
      num_bytes = values.nbytes
      yield first, values
      self._progress.add(num_bytes)


def _is_terminal(out: TextIO | None) -> bool:
  try:
    # Programs without standard error have None there.
    return out is not None and out.isatty()
  except (OSError, ValueError):
    return False


def _duration(seconds: float) -> str:
  """As 26 s, 4 min 05 s, 2 h 10 min."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02} min"
  if minutes:
    return f"{minutes} min {seconds:02} s"
  return f"{seconds} s"
