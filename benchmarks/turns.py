# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Times several things in turns, so that all see the same machine."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import statistics
import time

# A sample repeats short calls for this long, far above the clocks' resolution.
_MIN_SAMPLE_SECONDS = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
  """Seconds per call: one number per round."""

  cpu: Sequence[float]
  wall: Sequence[float]


def time_calls(call: Callable[[], object], calls: int) -> dict[str, float]:
  """Times `calls` calls; seconds per call, of the process and of the wall."""
  cpu, wall = time.process_time(), time.perf_counter()
  for _ in range(calls):
    call()
  wall = time.perf_counter() - wall
  cpu = time.process_time() - cpu
  return {"cpu": cpu / calls, "wall": wall / calls}


def take(
    timed: Mapping[str, Callable[[int], Mapping[str, float]]], rounds: int
) -> dict[str, Timing]:
  """Samples of everything in each round, every other round backwards.

  Args:
    timed: what to time: functions that call it the given number of times and
      return what `time_calls` does.
    rounds: how many samples of each.
  """
  calls = {}
  for name, run in timed.items():
    run(2)  # warms up
    seconds = run(2)["wall"]
    calls[name] = max(1, math.ceil(_MIN_SAMPLE_SECONDS / seconds))
  samples = {name: [] for name in timed}
  order = list(timed)
  for _ in range(rounds):
    for name in order:
      samples[name].append(timed[name](calls[name]))
    order.reverse()
  return {
      name: Timing(
          cpu=[sample["cpu"] for sample in of_name],
          wall=[sample["wall"] for sample in of_name],
      )
      for name, of_name in samples.items()
  }


def median(numbers: Sequence[float]) -> float:
  """Of the rounds."""
  return statistics.median(numbers)


def quartiles(numbers: Sequence[float]) -> tuple[float, float, float]:
  """Lower quartile, median and upper quartile of the rounds."""
  low, middle, high = statistics.quantiles(numbers, n=4)
  return low, middle, high


def quartiles_of_ratio(
    dividends: Sequence[float], divisors: Sequence[float]
) -> tuple[float, float, float]:
  """Lower quartile, median and upper quartile of the rounds' ratios.

  Ratios of neighbours in time: a machine that slows down slows both.
  """
  return quartiles([a / b for a, b in zip(dividends, divisors, strict=True)])
