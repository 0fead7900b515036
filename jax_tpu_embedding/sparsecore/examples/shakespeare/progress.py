# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

import tqdm

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
  """A context manager; the bar is closed at its end.

  Args:
    num_steps: step at which training ends.
    first_step: steps taken so far; not 0 when a run is resumed.
    words_per_step: words predicted per step.
  """

  def __init__(self, num_steps: int, first_step: int, words_per_step: int):
    self._num_steps = num_steps
    self._first_step = first_step
    self._step = first_step
    self._words_per_step = words_per_step
    self._start = time.monotonic()
    self._line_step, self._line_time = first_step, self._start
    self._bar = tqdm.tqdm(
        total=num_steps * words_per_step,
        initial=first_step * words_per_step,
        unit=" words",
        unit_scale=True,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    )

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *exception) -> None:
    self._bar.close()

  def update(self, step: int, loss: float, heldout_perplexity: float) -> None:
    """Shows that `step` steps are done, and what the last one and the latest
    evaluation gave."""
    status = f"loss {loss:.2f}, held-out perplexity {heldout_perplexity:.1f}"
    self._bar.set_postfix_str(status, refresh=False)
    self._bar.update((step - self._step) * self._words_per_step)
    self._step = step
    if self._bar.disable:
      self._print_line(status)

  def _print_line(self, status: str) -> None:
    now = time.monotonic()
    seconds = now - self._line_time
    if seconds < _SECONDS_BETWEEN_LINES and self._step < self._num_steps:
      return
    words = (self._step - self._line_step) * self._words_per_step
    print(
        f"step {self._step}/{self._num_steps}: {status},"
        f" {words / seconds:,.0f} words/s",
        flush=True,
    )
    self._line_step, self._line_time = self._step, now

  def summary(self) -> str:
    """Steps, time and rate; evaluations and checkpoints count as time."""
    seconds = time.monotonic() - self._start
    steps = self._step - self._first_step
    words = steps * self._words_per_step
    return f"{steps:,} steps in {seconds:.1f} s, {words / seconds:,.0f} words/s"
