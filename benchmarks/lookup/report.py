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

# Step -> the least ratio of a peer's CPU time to ours, the least ratio with
# conversion counted in, and the least part of the limit.
_TARGETS = {
    cases.FORWARD: (1.0, None, 0.8),
    cases.SGD: (8.0, 4.0, 0.7),
    cases.ADAGRAD: (10.0, 4.0, 0.7),
}


def target_peers(step: str) -> Sequence[str]:
  """Those that the target of `step` compares with: the best of them."""
  return measure.PEERS if step == cases.FORWARD else measure.UPDATE_PEERS


def _seconds(result: measure.Result, name: str, kind: str) -> Sequence[float]:
  return getattr(result.timings[name], kind)


def _median_ms(result: measure.Result, name: str, kind: str) -> str:
  if name not in result.timings:
    return _NOTHING
  return f"{1e3 * turns.median(_seconds(result, name, kind)):.3g}"


def _ratio(
    result: measure.Result, dividend: str | None, divisor: str, kind: str
) -> tuple[float, float, float] | None:
  """Quartiles; None where one of them was not measured."""
  if dividend not in result.timings or divisor not in result.timings:
    return None
  return turns.quartiles_of_ratio(
      _seconds(result, dividend, kind), _seconds(result, divisor, kind)
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


def row(result: measure.Result, kind: str = "cpu") -> str:
  """One measurement as a row of the table of `kind`."""
  cells = [_median_ms(result, name, kind) for name in _COLUMNS]
  limit = _ratio(result, measure.LIMIT, measure.OURS, kind)
  return (
      f"| {result.case.name} | {result.step} | {' | '.join(cells)}"
      f" | {_percent_cell(limit)} |"
  )


def _times_table(results: Sequence[measure.Result], kind: str) -> str:
  names = (*_COLUMNS, "limit / ours (quartiles)")
  header = f"| case | step | {' | '.join(names)} |\n"
  header += "|---|---|" + "--:|" * len(names) + "\n"
  return header + "".join(row(result, kind) + "\n" for result in results)


def _bandwidth_table(results: Sequence[measure.Result]) -> str:
  """Of the forward pass, over wall time."""
  text = "| case | limit, GB/s | ours, GB/s |\n|---|--:|--:|\n"
  for result in results:
    if result.step != cases.FORWARD:
      continue
    cells = [
        f"{result.case.gathered_bytes / 1e9 / turns.median(timing.wall):.3g}"
        if (timing := result.timings.get(name))
        else _NOTHING
        for name in (measure.LIMIT, measure.OURS)
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
      "best peer",
      "peer / limit",
      "peer / ours (quartiles)",
      "at least",
      "",
      "peer / ours with conversion (quartiles)",
      "at least",
      "",
      "limit / ours (quartiles)",
      "at least",
      "",
  )
  text = f"| case | step | {' | '.join(names)} |\n"
  text += "|---|---|---|--:|" + "--:|--:|---|" * 3 + "\n"
  for result in results:
    best = result.best(target_peers(result.step))
    at_most = _ratio(result, best, measure.LIMIT, "cpu")
    cells = [best or _NOTHING, f"{at_most[1]:.3g}" if at_most else _NOTHING]
    for dividend, divisor, target, cell in zip(
        (best, best, measure.LIMIT),
        (measure.OURS, measure.WITH_CONVERSION, measure.OURS),
        _TARGETS[result.step],
        (_ratio_cell, _ratio_cell, _percent_cell),
    ):
      ratio = _ratio(result, dividend, divisor, "cpu")
      wanted = _NOTHING if target is None else f"{target:g}"
      if target is not None and cell is _percent_cell:
        wanted = f"{target:.0%}"
      cells += [cell(ratio), wanted, _verdict(ratio, target)]
    text += f"| {result.case.name} | {result.step} | {' | '.join(cells)} |\n"
  return text


def _problems(results: Sequence[measure.Result]) -> str:
  return "".join(
      f"- {result.case.name}, {result.step}, {name}: not measured, {problem}\n"
      for result in results
      for name, problem in result.problems.items()
  )


def section(results: Sequence[measure.Result]) -> str:
  """The part of RESULTS.md on the peers."""
  return f"""## Beside the peers: targets

Of CPU time. Forward: the best of all peers; updates: the better of torch and
FBGEMM. Peer / limit is about the most that peer / ours can be on this machine.

{_targets_table(results)}
## CPU time, ms per step

{_times_table(results, "cpu")}
## Wall time, ms per step

{_times_table(results, "wall")}
## Bandwidth of the forward pass

Rows read and activations written, per second of wall time.

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
