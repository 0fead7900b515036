# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One step of one case, measured in turns on every package and on the limit."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import cases

OURS = "ours"
WITH_CONVERSION = "ours with conversion"
FROM_IDS = "ours, from ids"
IN_REFS = "ours, jax.Ref"
TWO_CALLS = "ours, two calls"
ROW_WISE = "ours, row-wise"
LIMIT = "limit"
# By worker. The first two are those that the targets of updates speak of.
PEERS = ("torch", "FBGEMM", "TensorFlow", "plain JAX", "JAX, scan")
UPDATE_PEERS = PEERS[:2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What one step of one case took."""

  case: cases.Case
  step: str  # one of cases.STEPS
  timings: dict[str, turns.Timing]
  # Name -> why it was not measured: what it returned was wrong, or it failed.
  problems: dict[str, str]

  def best(self, names: Sequence[str]) -> str | None:
    """That of `names` with the least median CPU time; None: not measured."""
    measured = [name for name in names if name in self.timings]
    if not measured:
      return None
    return min(measured, key=lambda name: turns.median(self.timings[name].cpu))


def measure(
    case: cases.Case,
    step: str,
    workers: Sequence[worker_process.WorkerProcess],
    rounds: int,
) -> Result:
  """Compares what the packages return, then times them in turns.

  Args:
    case: what to look up.
    step: one of cases.STEPS.
    workers: this package's, and those of its peers.
    rounds: how many samples of each.
  """
  timed, problems = {}, {}
  for worker in workers:
    try:
      answer = worker.command("load", case=dataclasses.asdict(case), step=step)
    except worker_process.WorkerError as error:
      # PyTorch's go on for pages.
      problems[worker.module] = str(error).partition("\n")[0][:200]
      continue
    problems |= answer["problems"]
    for name in answer["names"]:
      timed[name] = worker.timed(contender=name)
  return Result(
      case=case,
      step=step,
      timings=turns.take(timed, rounds),
      problems=problems,
  )
