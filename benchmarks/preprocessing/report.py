# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The results as text (RESULTS.md) and as data (results.json)."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import datetime
import os
import statistics
from typing import Any

from benchmarks import machine
from benchmarks.preprocessing import measure
from benchmarks.preprocessing import stages

# What a row shows where nothing was measured.
_NOTHING = "-"


def _times(result: measure.Result, name: str, kind: str) -> list[float]:
  """Nanoseconds per id, one per round; empty if not measured."""
  if name not in result.timings:
    return []
  return [
      1e9 * seconds / result.num_ids
      for seconds in getattr(result.timings[name], kind)
  ]


def _median(numbers: Sequence[float]) -> str:
  return f"{statistics.median(numbers):.3g}" if numbers else _NOTHING


def _with_quartiles(numbers: Sequence[float]) -> str:
  if not numbers:
    return _NOTHING
  low, median, high = statistics.quantiles(numbers, n=4)
  return f"{median:.3g} ({low:.3g} - {high:.3g})"


def _ratio(result: measure.Result, kind: str) -> str:
  if "reference" not in result.timings:
    return _NOTHING
  low, median, high = measure.ratio(result, kind)
  return f"{median:.2f} ({low:.2f} - {high:.2f})"


def _label(result: measure.Result) -> str:
  weights = "yes" if result.has_weights else "no"
  return f"{result.workload.name} | {weights} | {result.num_ids}"


def cpu_row(result: measure.Result) -> str:
  """One measurement as a row of the first table."""
  if result.problem:
    return f"| {_label(result)} | {result.problem} | | | | | | |"

  def median(name):
    return _median(_times(result, name, "cpu"))

  return (
      f"| {_label(result)} | {median('reference')} | {median('ours')}"
      f" | {_ratio(result, 'cpu')} | {median('ours, new memory')}"
      f" | {median('ours, native function')} | {median('floor, new memory')}"
      f" | {median('floor, reused memory')} |"
  )


_CPU_HEADER = """\
| workload | weights | ids | reference | ours | reference / ours (quartiles) | ours, new memory | ours, native function | floor, new memory | floor, reused memory |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def _wall_row(result: measure.Result) -> str:
  ours = _times(result, "ours", "wall")
  rate = f"{1e3 / statistics.median(ours):.3g}"
  call = statistics.median(result.timings["ours"].wall)
  return (
      f"| {_label(result)}"
      f" | {_with_quartiles(_times(result, 'reference', 'wall'))}"
      f" | {_with_quartiles(ours)} | {_ratio(result, 'wall')} | {rate}"
      f" | {1e3 * call:.3g} |"
  )


_WALL_HEADER = """\
| workload | weights | ids | reference (quartiles) | ours (quartiles) | reference / ours (quartiles) | ours, million ids/s | ours, ms per call |
|---|---|--:|--:|--:|--:|--:|--:|
"""

_STAGES_HEADER = """\
| workload | weights | extract | sort | fill | allocate | call in all | Python above the native function |
|---|---|--:|--:|--:|--:|--:|--:|
"""


def _stages_row(
    of_stages: stages.Stages, results: Sequence[measure.Result]
) -> str:
  call, python = _NOTHING, _NOTHING
  for result in results:
    if (result.workload.name, result.has_weights) == (
        of_stages.workload,
        of_stages.has_weights,
    ) and result.timings:
      ours = statistics.median(_times(result, "ours", "cpu"))
      native = statistics.median(_times(result, "ours, native function", "cpu"))
      call, python = f"{ours:.3g}", f"{ours - native:.2g}"
  return (
      f"| {of_stages.workload} | {'yes' if of_stages.has_weights else 'no'}"
      f" | {of_stages.extract:.2f} | {of_stages.sort:.2f}"
      f" | {of_stages.fill:.2f} | {of_stages.allocate:.2f} | {call}"
      f" | {python} |"
  )


def _summary(results: Sequence[measure.Result]) -> str:
  """Ratios of CPU time over all workloads."""
  compared = [r for r in results if "reference" in r.timings]
  if not compared:
    return "There was no reference to compare with.\n"
  lines = []
  for name, chosen in (
      ("all", compared),
      ("without weights", [r for r in compared if not r.has_weights]),
      ("with weights", [r for r in compared if r.has_weights]),
  ):
    if not chosen:
      continue
    ratios = [(measure.ratio(r)[1], r.workload.name) for r in chosen]
    mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
    least, workload = min(ratios)
    lines.append(
        f"- {name}: geometric mean **{mean:.2f}**, least {least:.2f}"
        f" ({workload}).\n"
    )
  return "".join(lines)


def _minibatching(results: Sequence[measure.Result]) -> str:
  """What minibatching costs a batch that needs one pass."""
  lines = []
  for result in results:
    if "ours, one pass" not in result.timings:
      continue
    quartiles = measure.ratio(
        result, numerator="ours", denominator="ours, one pass"
    )
    low, median, high = quartiles
    lines.append(
        f"Minibatching that is allowed and not needed, by the same batch where"
        f" it is not allowed, with{'' if result.has_weights else 'out'} weights:"
        f" {median:.2f} ({low:.2f} - {high:.2f}).\n"
    )
  return "".join(lines)


def markdown(
    results: Sequence[measure.Result],
    of_stages: Sequence[stages.Stages],
    versions: dict[str, dict[str, Any]],
    rounds: int,
    load_before: float,
) -> str:
  """RESULTS.md."""
  packages = "; ".join(
      f"{name}: Python {v['python']}, jax {v['jax']}, NumPy {v['numpy']},"
      f" {v['cpus']} CPUs"
      for name, v in versions.items()
  )
  measured = [result for result in results if result.timings]
  cpu = "".join(cpu_row(result) + "\n" for result in results)
  wall = "".join(_wall_row(result) + "\n" for result in measured)
  stage_rows = "".join(_stages_row(s, results) + "\n" for s in of_stages)
  return f"""# Conversion of a step's ids on the host

Written by `bazel run //benchmarks/preprocessing -- --output_dir=<this folder>`,
{datetime.date.today().isoformat()}. README.md says what the columns are.

- Machine: {machine.describe()}; Linux. Load before and after the run:
  {load_before:.1f} and {os.getloadavg()[0]:.1f}. Compare inside a row first.
- {packages}.
- {rounds} rounds. Numbers are medians; a ratio is the median of the rounds' ratios.

## Reference / ours, CPU time of the process

{_summary(results)}
{_minibatching(results)}
## CPU time, ns per id

{_CPU_HEADER}{cpu}
## Wall time, ns per id

{_WALL_HEADER}{wall}
## Where our time goes, ns per id

The first four columns are C++ on one thread (`stages_benchmark`), the last two
CPU time from above. `allocate` is no part of the call as it is by default,
which writes to the memory of an earlier result: it is of "ours, new memory".

{_STAGES_HEADER}{stage_rows}"""


def as_json(
    results: Sequence[measure.Result],
    of_stages: Sequence[stages.Stages],
    versions: dict[str, dict[str, Any]],
) -> dict[str, Any]:
  """results.json: nanoseconds per id; [lower quartile, median, upper]."""

  def quartiles(result, name, kind):
    numbers = statistics.quantiles(_times(result, name, kind), n=4)
    return [float(f"{number:.4g}") for number in numbers]

  return {
      "machine": machine.describe(),
      "date": datetime.date.today().isoformat(),
      "versions": versions,
      "results": [
          {
              "workload": dataclasses.asdict(result.workload),
              "has_weights": result.has_weights,
              "num_ids": result.num_ids,
              "problem": result.problem,
              "timings": {
                  name: {
                      kind: quartiles(result, name, kind)
                      for kind in ("cpu", "wall")
                  }
                  for name in sorted(result.timings)
              },
          }
          for result in results
      ],
      "stages_ns_per_id": [dataclasses.asdict(s) for s in of_stages],
  }
