# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a trace of jax.profiler says of lookups, updates and preprocessing."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import os
import pathlib
import re
from typing import Any

import jax

# The name of the annotation around the conversion of a batch on the host.
PREPROCESS = "embedding.preprocess"
_KINDS = ("convert", "lookup", "update")
_SCOPE = re.compile(rf"(?:^|/)({'|'.join(_KINDS)})/([^/]+)/")
_OP_NAME = re.compile(r'^\s*(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class StackTimes:
  """Milliseconds of a stack per run of the program, all devices together."""

  convert_ms: float = 0.0
  lookup_ms: float = 0.0
  update_ms: float = 0.0


@dataclasses.dataclass(frozen=True)
class Summary:
  """What `summarize` returns.

  Attributes:
    stacks: by name. Those whose calls the trace does not have are zeros.
    num_runs: of the program, in the trace.
    preprocess_ms: of all batches of the trace together.
    overlapped_ms: of those, while the program ran on some device.
  """

  stacks: dict[str, StackTimes]
  num_runs: int
  preprocess_ms: float
  overlapped_ms: float

  def __str__(self) -> str:
    lines = [f"{self.num_runs} runs; milliseconds of each"]
    width = max(map(len, (*self.stacks, "stack")))
    lines.append(f"{'stack':{width}}  convert   lookup   update")
    lines += [
        f"{name:{width}} {times.convert_ms:8.3f} {times.lookup_ms:8.3f}"
        f" {times.update_ms:8.3f}"
        for name, times in self.stacks.items()
    ]
    lines.append(
        f"preprocessing: {self.preprocess_ms:.3f} ms of all batches, of which"
        f" {self.overlapped_ms:.3f} ms while the program ran"
    )
    return "\n".join(lines)


def summarize(
    trace_dir: str | os.PathLike[str], compiled: jax.stages.Compiled
) -> Summary:
  """Joins a trace with the names of stacks in a compiled program.

  A trace has the names of XLA's instructions. The program's text says which
  stack each is for. On CPU, record with `options.host_tracer_level = 3` of
  jax.profiler.ProfileOptions: with less, the trace has no instructions.

  Args:
    trace_dir: what jax.profiler.start_trace was given; the latest trace in it.
    compiled: the program, from `jax.jit(f).lower(...).compile()`.

  Raises:
    FileNotFoundError: if there is no trace.
    ValueError: if the trace has no run of the program.
  """
  text = compiled.as_text()
  module = re.search(r"^HloModule ([\w.-]+)", text)[1]
  scopes = {}
  for line in text.splitlines():
    found = _OP_NAME.match(line)
    scope = found and _SCOPE.search(found[2])
    if scope:
      scopes[found[1]] = scope.groups()
  profile = jax.profiler.ProfileData.from_file(str(_latest(trace_dir)))
  runs = set()
  total = {stack: dict.fromkeys(_KINDS, 0.0) for _, stack in scopes.values()}
  busy, preprocessing = [], []
  for event in _events(profile):
    if event.name == PREPROCESS:
      preprocessing.append((event.begin, event.end))
    if event.module != module:
      continue
    busy.append((event.begin, event.end))
    runs.add(event.run)
    if event.op in scopes:
      kind, stack = scopes[event.op]
      total[stack][kind] += event.end - event.begin
  if not runs:
    raise ValueError(
        f"The trace in {trace_dir} has no run of {module}. On CPU, record it"
        " with host_tracer_level=3 of jax.profiler.ProfileOptions."
    )
  busy = _union(busy)
  return Summary(
      {
          stack: StackTimes(
              **{
                  f"{kind}_ms": ns / len(runs) / 1e6
                  for kind, ns in by_kind.items()
              }
          )
          for stack, by_kind in sorted(total.items())
      },
      len(runs),
      sum(end - begin for begin, end in preprocessing) / 1e6,
      sum(_overlap(interval, busy) for interval in preprocessing) / 1e6,
  )


@dataclasses.dataclass(frozen=True)
class _Event:
  name: str
  begin: float  # ns, like `end`
  end: float
  module: str | None
  op: str | None
  run: Any


def _latest(trace_dir: str | os.PathLike[str]) -> pathlib.Path:
  paths = sorted(
      pathlib.Path(trace_dir).rglob("*.xplane.pb"),
      key=lambda path: path.stat().st_mtime_ns,
  )
  if not paths:
    raise FileNotFoundError(
        f"No trace in {trace_dir}. Make one with jax.profiler.trace."
    )
  return paths[-1]


def _events(profile: jax.profiler.ProfileData) -> Iterator[_Event]:
  """Those that matter. An asynchronous call lasts to its "end:" event."""
  ends, found = {}, []
  for plane in profile.planes:
    for line in plane.lines:
      for event in line.events:
        if event.name.startswith("end: "):
          key = dict(event.stats).get("_c")
          ends[key] = event.start_ns
        elif event.name == PREPROCESS:
          found.append((event, {}))
        elif not event.name.startswith("$"):  # those are Python functions
          stats = dict(event.stats)
          if "hlo_op" in stats:
            found.append((event, stats))
  for event, stats in found:
    end = event.start_ns + event.duration_ns
    yield _Event(
        event.name,
        event.start_ns,
        max(end, ends.get(stats.get("_p"), end)),
        stats.get("hlo_module"),
        stats.get("hlo_op"),
        stats.get("run_id"),
    )


def _union(
    intervals: list[tuple[float, float]],
) -> list[tuple[float, float]]:
  """Disjoint intervals, in order."""
  merged = []
  for begin, end in sorted(intervals):
    if merged and begin <= merged[-1][1]:
      merged[-1] = merged[-1][0], max(end, merged[-1][1])
    else:
      merged.append((begin, end))
  return merged


def _overlap(
    interval: tuple[float, float], intervals: list[tuple[float, float]]
) -> float:
  begin, end = interval
  return sum(max(min(end, e) - max(begin, b), 0.0) for b, e in intervals)
