# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Does the time of a step follow the size of the table? It must not.

benchmarks/update_scaling has the update alone, and what a copy would cost.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import memory

from benchmarks import machine
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import cases
from benchmarks.lookup import limit
from benchmarks.lookup import ours_worker

_NUM_ROWS = [2**20 * n for n in (1, 4, 16, 64)]
_CASE = cases.Case(
    name="16384 x 20, uniform",
    batch_size=16384,
    valency=20,
    dim=32,
    num_rows=_NUM_ROWS[0],
)
_STEP = cases.SGD
# Of the smallest table's time; the machine's noise is about that.
_TARGET_RATIO = 1.1

# Ids in the rows of the smallest table, and in all rows.
_NEAR = "near"
_FAR = "far"


class Worker:
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory()

  def load(self, case: dict[str, Any], num_rows: list[int]) -> dict[str, Any]:
    """Makes all tables, so that they can take turns."""
    smallest = cases.Case(**case)
    _check_memory(4 * smallest.dim * sum(num_rows))
    batches = {_NEAR: cases.make_batches(smallest)}
    self._steps = {}
    for rows in num_rows:
      case = dataclasses.replace(smallest, num_rows=rows)
      batches[_FAR] = cases.make_batches(case)
      ours = ours_worker.Ours(case, _STEP, batches[_NEAR] + batches[_FAR])
      near = range(smallest.num_batches)
      far = range(near.stop, 2 * near.stop)
      # The memory gets huge pages in these.
      for number in far:
        ours.step(number)
      limits = limit.Limit(case, _STEP, ours.tables)
      self._steps |= {
          f"{_NEAR} {rows}": _in_turn(ours.step, near),
          f"{_FAR} {rows}": _in_turn(ours.step, far),
          f"limit {rows}": _in_turn(limits.step, near),
      }
    return {"names": list(self._steps)}

  def run(self, step: str, calls: int) -> dict[str, float]:
    """Times `calls` steps."""
    return turns.time_calls(self._steps[step], calls)


def _in_turn(
    step: Callable[[int], None], batch_numbers: range
) -> Callable[[], None]:
  numbers = itertools.cycle(batch_numbers)
  return lambda: step(next(numbers))


def _check_memory(needed_bytes: int) -> None:
  """Better than to be killed.

  Raises:
    MemoryError: if less is free.
  """
  free_bytes = machine.available_memory_bytes()
  if free_bytes < 1.1 * needed_bytes:
    raise MemoryError(
        f"{needed_bytes / 2**30:.1f} GiB for tables, {free_bytes / 2**30:.1f}"
        " GiB are free"
    )


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  case = cases.shrink(_CASE) if quick else _CASE
  num_rows = [case.num_rows * n // _NUM_ROWS[0] for n in _NUM_ROWS]
  head = f"""## Step time and table size

{_STEP} of {case.batch_size} samples x {case.valency} ids; width {case.dim}.
The sizes take turns. Same ids: rows of the smallest table; at most {_TARGET_RATIO}
times its CPU time. All rows: ids from the whole table, which are in more pages,
beside the limit for them.

"""
  with worker_process.WorkerProcess(__name__) as worker:
    try:
      names = worker.command(
          "load", case=dataclasses.asdict(case), num_rows=num_rows
      )["names"]
    except worker_process.WorkerError as error:
      return f"{head}Not measured: {error}.\n"
    # By kind, not by size: else a step would find the rows of the one before it
    # in a cache, most of all those of the smallest table.
    timings = turns.take(
        {name: worker.timed(step=name) for name in sorted(names)}, rounds
    )
  rows = [_row(rows, num_rows[0], case.dim, timings) for rows in num_rows]
  return head + _HEADER + "".join(rows)


_HEADER = """\
| rows | table MiB | same ids, CPU ms | wall ms | of the smallest's CPU time (quartiles) | | all rows, CPU ms | wall ms | limit, CPU ms | limit / step (quartiles) |
|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|
"""


def _row(
    num_rows: int,
    smallest: int,
    dim: int,
    timings: Mapping[str, turns.Timing],
) -> str:
  near, far, limits = (
      timings[f"{kind} {num_rows}"] for kind in (_NEAR, _FAR, "limit")
  )

  def ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * turns.median(seconds):.3g}"

  low, ratio, high = turns.quartiles_of_ratio(
      near.cpu, timings[f"{_NEAR} {smallest}"].cpu
  )
  part = turns.quartiles_of_ratio(limits.cpu, far.cpu)
  return (
      f"| {num_rows / 2**20:.3g} M | {4 * num_rows * dim / 2**20:.0f}"
      f" | {ms(near.cpu)} | {ms(near.wall)}"
      f" | {ratio:.2f} ({low:.2f} - {high:.2f})"
      f" | {'yes' if ratio <= _TARGET_RATIO else '**no**'}"
      f" | {ms(far.cpu)} | {ms(far.wall)} | {ms(limits.cpu)}"
      f" | {part[1]:.0%} ({part[0]:.0%} - {part[2]:.0%}) |\n"
  )
