# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Results beside the peers as text (for RESULTS.md) and as data."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import statistics
from typing import Any

from benchmarks import turns
from benchmarks.lookup import cases
from benchmarks.lookup import measure

# What a cell shows where nothing was measured.
_NOTHING = "-"

_COLUMNS = (
    measure.LIMIT,
    measure.OURS,
    measure.WITH_CONVERSION,
    measure.FROM_IDS,
    measure.IN_REFS,
    measure.TWO_CALLS,
    measure.ROW_WISE,
    *measure.PEERS,
)

# What is compared, for each step. A program that only reads has ids; buffers are
# for updates.
_OURS = {
    cases.FORWARD: measure.FROM_IDS,
    cases.SGD: measure.OURS,
    cases.ADAGRAD: measure.OURS,
}
# The least ratio of the limit's time to ours: at most 1.1 times the limit.
_OF_THE_LIMIT = 1 / 1.1
# The least ratio of the better peer's time to ours, forward; more where rows
# come from caches, or with one id per sample.
_OF_THE_PEER = 1.0
_OF_THE_PEER_EASY = 1.5


def _median_ms(result: measure.Result, name: str) -> str:
  if name not in result.timings:
    return _NOTHING
  return f"{1e3 * turns.median(result.seconds(name)):.3g}"


def _ratio(
    result: measure.Result, dividend: str | None, divisor: str
) -> tuple[float, float, float] | None:
  """Quartiles; None where one of them was not measured."""
  if dividend not in result.timings or divisor not in result.timings:
    return None
  return turns.quartiles_of_ratio(
      result.seconds(dividend), result.seconds(divisor)
  )


def _ratio_cell(ratio: tuple[float, float, float] | None) -> str:
  if ratio is None:
    return _NOTHING
  low, median, high = ratio
  return f"{median:.3g} ({low:.3g} - {high:.3g})"


def _percent_cell(ratio: tuple[float, float, float] | None) -> str:
  if ratio is None:
    return _NOTHING
  low, median, high = ratio
  return f"{median:.0%} ({low:.0%} - {high:.0%})"


def row(result: measure.Result) -> str:
  """One measurement as a row of the table of times."""
  cells = [_median_ms(result, name) for name in _COLUMNS]
  return f"| {result.case.name} | {result.step} | {' | '.join(cells)} |"


def _times_table(results: Sequence[measure.Result]) -> str:
  header = f"| case | step | {' | '.join(_COLUMNS)} |\n"
  header += "|---|---|" + "--:|" * len(_COLUMNS) + "\n"
  return header + "".join(row(result) + "\n" for result in results)


def _bandwidth_table(results: Sequence[measure.Result]) -> str:
  """Of the forward pass."""
  text = "| case | limit, GB/s | ours, GB/s |\n|---|--:|--:|\n"
  for result in results:
    if result.step != cases.FORWARD:
      continue
    gigabytes = result.case.gathered_bytes / 1e9
    cells = [
        f"{gigabytes / turns.median(result.seconds(name)):.3g}"
        if name in result.timings
        else _NOTHING
        for name in (measure.LIMIT, measure.FROM_IDS)
    ]
    text += f"| {result.case.name} | {' | '.join(cells)} |\n"
  return text


def _verdict(
    ratio: tuple[float, float, float] | None, target: float | None
) -> str:
  """Of the median; the column beside it has the quartiles."""
  if ratio is None or target is None:
    return _NOTHING
  return "yes" if ratio[1] >= target else "**no**"


def _targets_table(results: Sequence[measure.Result]) -> str:
  names = (
      "limit / ours (quartiles)",
      "at least",
      "",
      "best peer",
      "peer / limit",
      "peer / ours (quartiles)",
      "at least",
      "",
      "peer / ours with conversion",
  )
  text = f"| case | step | {' | '.join(names)} |\n"
  text += "|---|---|" + "--:|--:|---|---|" + "--:|--:|--:|---|--:|\n"
  for result in results:
    ours = _OURS[result.step]
    best = result.best(measure.TARGET_PEERS)
    of_limit = _ratio(result, measure.LIMIT, ours)
    at_most = _ratio(result, best, measure.LIMIT)
    of_peer = _ratio(result, best, ours)
    target = None
    if result.step == cases.FORWARD:
      is_easy = result.case.zipf > 0 or result.case.valency == 1
      target = _OF_THE_PEER_EASY if is_easy else _OF_THE_PEER
    cells = (
        _percent_cell(of_limit),
        f"{_OF_THE_LIMIT:.0%}",
        _verdict(of_limit, _OF_THE_LIMIT),
        best or _NOTHING,
        f"{at_most[1]:.3g}" if at_most else _NOTHING,
        _ratio_cell(of_peer),
        _NOTHING if target is None else f"{target:g}",
        _verdict(of_peer, target),
        _ratio_cell(_ratio(result, best, measure.WITH_CONVERSION)),
    )
    text += f"| {result.case.name} | {result.step} | {' | '.join(cells)} |\n"
  return text


def _beaten(results: Sequence[measure.Result]) -> str:
  lines = who_beat_the_limit(results)
  return f"The limit is none where it was beaten:\n\n{lines}\n" if lines else ""


def _cpus(number: int) -> str:
  return "one CPU" if number == 1 else f"{number} CPUs"


def who_beat_the_limit(results: Sequence[measure.Result]) -> str:
  """A line for each; no text if nobody did."""
  return "".join(
      f"- {name} in {result.case.name}, {result.step},"
      f" {_cpus(result.num_cpus)}\n"
      for result in results
      for name in result.who_beat_the_limit()
  )


def _problems(results: Sequence[measure.Result]) -> str:
  return "".join(
      f"- {result.case.name}, {result.step}, {name}: not measured, {problem}\n"
      for result in results
      for name, problem in result.problems.items()
  )


def section(results: Sequence[measure.Result], num_cpus: int) -> str:
  """The part of RESULTS.md on the peers, all of which had so many CPUs."""
  cpus = _cpus(num_cpus)
  time = "CPU time" if num_cpus == 1 else "Wall time"
  return f"""## Beside the peers on {cpus}: targets

{time}. Ours is {measure.FROM_IDS[6:]} where nothing is updated, and else has
buffers at hand, as the peers have ids and offsets. Peer / limit is the most that
peer / ours can be on this machine.

{_targets_table(results)}
{_beaten(results)}## {time} on {cpus}, ms per step

{_times_table(results)}
## Bandwidth of the forward pass on {cpus}

Rows read and activations written, per second of {time.lower()}.

{_bandwidth_table(results)}
{_problems(results)}"""


def as_json(results: Sequence[measure.Result]) -> list[dict[str, Any]]:
  """Milliseconds per step: [lower quartile, median, upper quartile]."""

  def quartiles(seconds):
    numbers = statistics.quantiles(seconds, n=4)
    return [float(f"{1e3 * number:.4g}") for number in numbers]

  return [
      {
          "case": dataclasses.asdict(result.case),
          "step": result.step,
          "num_cpus": result.num_cpus,
          "problems": result.problems,
          "timings_ms": {
              name: {
                  kind: quartiles(getattr(timing, kind))
                  for kind in ("cpu", "wall")
              }
              for name, timing in result.timings.items()
          },
      }
      for result in results
  ]
