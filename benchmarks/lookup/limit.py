# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The limit of a step: its whole work, by a program that knows the case."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import ctypes
import dataclasses
import itertools
import math
import mmap
import pathlib

import jax
import numpy as np

from benchmarks import machine
from benchmarks import turns
from benchmarks.lookup import case_worker
from benchmarks.lookup import cases

# Rows of the table, and of the gradient, to ask for before they are needed.
_ROWS_AHEAD = (8, 16, 32, 64, 128, 192)
_SAMPLES_AHEAD = (4, 16, 64)
# Ids of a lookup to have in a cache before any of their rows is added.
_IDS_AT_ONCE = (0, 1024)
_ROUNDS_TO_CHOOSE = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
  """What is best depends on the machine and the case; see limit_kernels.cc."""

  width: int  # columns whose sums are in registers at once
  rows_ahead: int
  samples_ahead: int  # of updates alone
  ids_at_once: int  # of lookups alone; 0: none
  to_first_level: bool
  num_threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entries:
  """The ids of a batch, sorted by row: what an update needs."""

  rows: np.ndarray  # i32[num_ids]
  samples: np.ndarray  # i32[num_ids]
  gains: np.ndarray  # f32[num_ids]


def load_library() -> ctypes.CDLL:
  """The functions of limit_kernels.cc."""
  library = ctypes.CDLL(
      str(pathlib.Path(__file__).with_name("limit_kernels.so"))
  )
  library.UpdateRows.restype = ctypes.c_bool
  return library


class Limit(case_worker.Contender):
  """The fastest of several strategies, all of which do the whole step.

  Tables and activations are in huge pages. Batches come with their ids in the
  order of samples, and with entries in the order of rows: neither is sorted in a
  step.
  """

  def __init__(
      self,
      case: cases.Case,
      step: str,
      tables: Callable[[], Sequence[jax.Array]] | None = None,
  ):
    """Makes tables, and chooses.

    Args:
      case: what to look up.
      step: one of cases.STEPS.
      tables: returns the table and the slots in whose memory to work, at each
        step. Their values are lost, and those of `table` mean nothing. Default:
        tables of its own.

    Raises:
      ValueError: if limit_kernels.cc has no update for so many columns.
    """
    self._library = load_library()
    self._case = case
    self._updates = step != cases.FORWARD
    self._batches = cases.make_batches(case)
    self._entries = [_sort_by_row(batch) for batch in self._batches]
    self._gradient = cases.make_gradient(case)
    self._output = _in_huge_pages((case.batch_size, case.dim))
    self._own: list[np.ndarray] = []
    self._tables = tables or self._own_tables
    if tables is None:
      self._reset(step)
    self._look_up_best = self._fastest(
        self._look_up, _strategies(case.dim, ids_at_once=_IDS_AT_ONCE)
    )
    if self._updates:
      self._update_best = self._fastest(
          self._update, _strategies(case.dim, samples_ahead=_SAMPLES_AHEAD)
      )
    if tables is None:
      self._reset(step)  # Choosing has trained them.

  def _reset(self, step: str) -> None:
    table = cases.make_table(self._case)
    if not self._own:
      num_tables = 2 if step == cases.ADAGRAD else 1
      self._own = [_in_huge_pages(table.shape) for _ in range(num_tables)]
    self._own[0][:] = table
    for slot in self._own[1:]:
      slot[:] = cases.INITIAL_ACCUMULATOR

  def _own_tables(self) -> list[np.ndarray]:
    return self._own

  def _table_pointers(self) -> list[ctypes.c_void_p]:
    """Of the table, and of the slot or null."""
    pointers = [_pointer(table) for table in self._tables()]
    return (pointers + [ctypes.c_void_p()])[:2]

  def step(self, batch_number: int) -> None:
    self._look_up(batch_number, self._look_up_best)
    if self._updates:
      self._update(batch_number, self._update_best)

  def activations(self) -> np.ndarray:
    return self._output

  def table(self) -> np.ndarray:
    return np.asarray(self._tables()[0])

  def _look_up(self, batch_number: int, strategy: Strategy) -> None:
    batch = self._batches[batch_number]
    self._library.LookUp(
        self._table_pointers()[0],
        *map(_pointer, (batch.ids, batch.weights, self._output)),
        *map(ctypes.c_int64, (*batch.ids.shape, self._case.dim)),
        ctypes.c_int64(strategy.width),
        ctypes.c_int64(strategy.rows_ahead),
        ctypes.c_int64(-(-strategy.ids_at_once // batch.ids.shape[1])),
        ctypes.c_bool(strategy.to_first_level),
        ctypes.c_int64(strategy.num_threads),
    )

  def _update(self, batch_number: int, strategy: Strategy) -> None:
    entries = self._entries[batch_number]
    is_done = self._library.UpdateRows(
        *self._table_pointers(),
        *map(_pointer, (entries.rows, entries.samples, entries.gains)),
        _pointer(self._gradient),
        ctypes.c_int64(entries.rows.size),
        ctypes.c_int64(self._case.dim),
        ctypes.c_int64(strategy.width),
        ctypes.c_int64(strategy.rows_ahead),
        ctypes.c_int64(strategy.samples_ahead),
        ctypes.c_bool(strategy.to_first_level),
        ctypes.c_int64(strategy.num_threads),
    )
    if not is_done:
      raise ValueError(
          f"limit_kernels.cc has no update of {self._case.dim} columns; choose 16, 32,"
          " 64 or 128."
      )

  def _fastest(
      self,
      do: Callable[[int, Strategy], None],
      strategies: Sequence[Strategy],
  ) -> Strategy:
    """That with the least median of the rounds' wall times.

    Not the least of all: two threads are sometimes there at once, and mostly
    wait for each other where a step is short.
    """
    batch_numbers = itertools.cycle(range(len(self._batches)))
    seconds = {strategy: [] for strategy in strategies}
    for _ in range(_ROUNDS_TO_CHOOSE):
      for strategy, of_strategy in seconds.items():
        of_strategy.append(
            turns.time_calls(
                lambda s=strategy: do(next(batch_numbers), s), calls=2
            )["wall"]
        )
    return min(seconds, key=lambda strategy: turns.median(seconds[strategy]))


def _strategies(
    dim: int,
    samples_ahead: Sequence[int] = (0,),
    ids_at_once: Sequence[int] = (0,),
) -> list[Strategy]:
  return [
      Strategy(
          width=width,
          rows_ahead=rows,
          samples_ahead=samples,
          ids_at_once=ids,
          to_first_level=to_first_level,
          num_threads=threads,
      )
      for threads in sorted({1, machine.num_cpus()})
      for width in sorted({min(dim, 64), dim})
      for rows in _ROWS_AHEAD
      for samples in samples_ahead
      for ids in ids_at_once
      for to_first_level in (False, True)
  ]


def _sort_by_row(batch: cases.Batch) -> Entries:
  ids = batch.ids.reshape(-1)
  order = np.argsort(ids, kind="stable")
  return Entries(
      rows=ids[order],
      samples=(order // batch.ids.shape[1]).astype(np.int32),
      gains=batch.weights.reshape(-1)[order],
  )


def _in_huge_pages(shape: tuple[int, ...]) -> np.ndarray:
  """An array of float32 in memory of its own, where the system has them."""
  # Private, since shared memory, the default, has small pages.
  memory = mmap.mmap(
      -1, 4 * math.prod(shape), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  )
  memory.madvise(mmap.MADV_HUGEPAGE)
  return np.frombuffer(memory, np.float32).reshape(shape)


def _pointer(array: np.ndarray | jax.Array) -> ctypes.c_void_p:
  if isinstance(array, jax.Array):
    return ctypes.c_void_p(array.unsafe_buffer_pointer())
  return ctypes.c_void_p(array.ctypes.data)
