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
# By worker. The first two are those that the targets speak of.
PEERS = ("torch", "FBGEMM", "TensorFlow", "plain JAX", "JAX, scan")
TARGET_PEERS = PEERS[:2]
# Step -> those that move less memory: their Adagrad has a number per row.
_DO_LESS = {cases.ADAGRAD: (ROW_WISE, "FBGEMM")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What one step of one case took."""

  case: cases.Case
  step: str  # one of cases.STEPS
  num_cpus: int  # that everybody had
  timings: dict[str, turns.Timing]
  # Name -> why it was not measured: what it returned was wrong, or it failed.
  problems: dict[str, str]

  def seconds(self, name: str) -> Sequence[float]:
    """Of every round: of one CPU, or of the wall with several.

    Whoever uses two CPUs for memory that one can nearly fill takes twice the CPU
    time for little, and more than whoever leaves one idle. So CPU time says
    something of programs with one CPU only.
    """
    timing = self.timings[name]
    return timing.cpu if self.num_cpus == 1 else timing.wall

  def best(self, names: Sequence[str]) -> str | None:
    """That of `names` with the least median; None: not measured."""
    measured = [name for name in names if name in self.timings]
    if not measured:
      return None
    return min(measured, key=lambda name: turns.median(self.seconds(name)))

  def who_beat_the_limit(self) -> list[str]:
    """Those that were faster at the same work in three of four rounds."""
    if LIMIT not in self.timings:
      return []
    others = (LIMIT, *_DO_LESS.get(self.step, ()))
    return [
        name
        for name in self.timings
        if name not in others
        and turns.quartiles_of_ratio(self.seconds(LIMIT), self.seconds(name))[0]
        > 1
    ]


def measure(
    case: cases.Case,
    step: str,
    workers: Sequence[worker_process.WorkerProcess],
    num_cpus: int,
    rounds: int,
) -> Result:
  """Compares what the packages return, then times them in turns.

  Args:
    case: what to look up.
    step: one of cases.STEPS.
    workers: this package's, and those of its peers.
    num_cpus: that each of them may use.
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
      num_cpus=num_cpus,
      timings=turns.take(timed, rounds),
      problems=problems,
  )
