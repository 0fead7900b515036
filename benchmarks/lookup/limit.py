# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The physical limit of a step: touching the rows that must move."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import ctypes
import itertools
import pathlib

import jax
import numpy as np

from benchmarks import machine
from benchmarks import turns
from benchmarks.lookup import case_worker
from benchmarks.lookup import cases

# Rows; which is best depends on how many of them are in a cache.
_PREFETCH_DISTANCES = (8, 16, 32, 64)
_ROUNDS_TO_CHOOSE = 5
# Waking threads for less costs more than they do.
_MIN_BYTES_TO_SHARE = 2**20


class Limit(case_worker.Contender):
  """Does in native code what any implementation has to do to the memory.

  For the forward pass: reads the row of each id, in the order of samples, and
  writes the pooled rows. For an update, on top: reads the gradient of the
  activations once, in its order, and reads and writes each distinct row of the
  table and of the slot once, in ascending order.
  """

  # The values of the table stay.
  computed_step = cases.FORWARD

  def __init__(
      self,
      case: cases.Case,
      step: str,
      batches: Sequence[cases.Batch],
      tables: Callable[[], Sequence[jax.Array]],
  ):
    """Works on the memory of what `tables` returns at each step.

    Args:
      case: what to look up.
      step: one of cases.STEPS.
      batches: those of `case`, or others of their shape.
      tables: returns the table, and the slots.
    """
    path = pathlib.Path(__file__).with_name("touch_memory.so")
    self._library = ctypes.CDLL(str(path))
    self._case = case
    self._tables = tables
    self._updates = step != cases.FORWARD
    self._batches = batches
    self._rows = [np.unique(batch.ids).astype(np.int32) for batch in batches]
    self._gradient = cases.make_gradient(case)
    self._activations = np.zeros((case.batch_size, case.dim), np.float32)
    is_small = case.gathered_bytes < _MIN_BYTES_TO_SHARE
    self._num_threads = 1 if is_small else machine.num_cpus()
    self._gather_distance = self._best_distance(self._gather)
    self._touch_distance = self._best_distance(self._touch)

  def step(self, batch_number: int) -> None:
    self._gather(batch_number, self._gather_distance)
    if self._updates:
      self._touch(batch_number, self._touch_distance)

  def activations(self) -> np.ndarray:
    return self._activations

  def table(self) -> np.ndarray:
    return np.asarray(self._tables()[0])

  def _gather(self, batch_number: int, distance: int) -> None:
    batch = self._batches[batch_number]
    self._library.GatherRows(
        ctypes.c_void_p(self._tables()[0].unsafe_buffer_pointer()),
        ctypes.c_void_p(batch.ids.ctypes.data),
        ctypes.c_void_p(batch.weights.ctypes.data),
        ctypes.c_void_p(self._activations.ctypes.data),
        *map(ctypes.c_int64, (*batch.ids.shape, self._case.dim, distance)),
        ctypes.c_int64(self._num_threads),
    )

  def _touch(self, batch_number: int, distance: int) -> None:
    rows = self._rows[batch_number]
    pointers = [table.unsafe_buffer_pointer() for table in self._tables()]
    self._library.TouchRows(
        ctypes.c_void_p(self._gradient.ctypes.data),
        ctypes.c_int64(self._gradient.size),
        (ctypes.c_void_p * len(pointers))(*pointers),
        ctypes.c_int64(len(pointers)),
        ctypes.c_void_p(rows.ctypes.data),
        *map(ctypes.c_int64, (rows.size, self._case.dim, distance)),
        ctypes.c_int64(self._num_threads),
    )

  def _best_distance(self, touch: Callable[[int, int], None]) -> int:
    """That which took the least CPU time of a few."""
    batch_numbers = itertools.cycle(range(len(self._batches)))
    least = dict.fromkeys(_PREFETCH_DISTANCES, float("inf"))
    for _ in range(_ROUNDS_TO_CHOOSE):
      for distance in least:
        seconds = turns.time_calls(
            lambda d=distance: touch(next(batch_numbers), d), calls=2
        )["cpu"]
        least[distance] = min(least[distance], seconds)
    return min(least, key=least.get)
