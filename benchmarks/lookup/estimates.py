# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Does the cost report know how long lookups and updates take on this CPU?"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import workload

from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import cases
from benchmarks.lookup import ours_worker

_TARGET_RATIO = 1.5


class Worker:
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory()

  def load(self, case: dict[str, Any], step: str) -> dict[str, float]:
    """Makes the step of a case; returns the milliseconds of its estimate."""
    case = cases.Case(**case)
    batches = cases.make_batches(case)
    report = cost_report.estimate(
        ours_worker.make_specs(case, step),
        "cpu:1",
        workload=workload.FromBatches([[batch.ids] for batch in batches[:3]]),
    )
    self._case, self._number = case, 0
    self._ours = ours_worker.Ours(case, step, batches)
    update = 0.0 if step == cases.FORWARD else report.update_seconds
    for _ in batches:  # The memory gets huge pages.
      self._step()
    return {"estimate": 1e3 * (report.lookup_seconds + update)}

  def _step(self) -> None:
    self._ours.step(self._number)
    self._number = (self._number + 1) % self._case.num_batches

  def run(self, calls: int) -> dict[str, float]:
    """Times `calls` steps."""
    return turns.time_calls(self._step, calls)


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  text = f"""## The cost report's estimates

`cost_report.estimate(specs, "cpu:1")` of each step, with the ids of its batches,
beside what it takes: wall time, ms, quartiles. All CPUs; buffers at hand. At most
{_TARGET_RATIO} times as long, or as short.

| case | step | estimate | measured | estimate / measured | |
|---|---|--:|--:|--:|---|
"""
  for case in [cases.shrink(cases.CASES[0])] if quick else cases.CASES:
    for step in cases.STEPS:
      # A process for each measures the CPU anew: where the host is shared, its
      # speed changes within minutes.
      with worker_process.WorkerProcess(__name__) as worker:
        estimate = worker.command(
            "load", case=dataclasses.asdict(case), step=step
        )["estimate"]
        seconds = turns.take({step: worker.timed()}, rounds)[step].wall
      low, median, high = turns.quartiles([1e3 * x for x in seconds])
      ratio = estimate / median
      is_near = 1 / _TARGET_RATIO <= ratio <= _TARGET_RATIO
      text += (
          f"| {case.name} | {step} | {estimate:.3g}"
          f" | {median:.3g} ({low:.3g} - {high:.3g}) | {ratio:.2f}"
          f" | {'yes' if is_near else '**no**'} |\n"
      )
  return text
