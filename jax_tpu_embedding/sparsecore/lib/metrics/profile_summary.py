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
# Of a call for several stacks, the path ends with the name that they share.
_STACK = r"(.+/.+|small_stacks$)"
# Kind -> the scope of a stack, and what is in it. Modules of a model may have
# these names too, and pipelines have scopes of them around several stacks. So
# lookups and updates are those inside of the functions that make them.
_SCOPES = {
    "lookup": re.compile(
        r"(?:^|/)(?:tpu_sparse_dense_matmul|lookup_ids)/(?:.*?/)?"
        rf"lookup(?:_ids)?/{_STACK}"
    ),
    "update": re.compile(
        r"(?:^|/)(?:tpu_sparse_dense_matmul_grad|apply_sparse_gradients)/"
        rf"(?:.*?/)?update/{_STACK}"
    ),
    # No named function is around conversions. This takes the last "convert/" of
    # a path; `_scopes` drops those of names that are no stack.
    "convert": re.compile(r".*(?:^|/)convert/(.+/.+)"),
}
_CONVERSION = "/convert_ids"
# JAX writes those around the first scope that they see: jvp(convert/items).
_TRANSFORMED = re.compile(r"(?:^|(?<=[/(]))(?:jvp|transpose|vmap)\(([^()]*)\)")
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
    stacks: by name. Those whose calls the trace does not have are zeros. What
      a CPU does in one call for stacks of few ids is of "small_stacks".
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
  stack each is for. Names of stacks with a "/" in them are known from dicts by
  stack, as tables and inputs are, in the program's arguments and results. On
  CPU, record with `options.host_tracer_level = 3` of
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
  scopes = _scopes(text, _keys(compiled))
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


def _scopes(text: str, names: set[str]) -> dict[str, tuple[str, str]]:
  """Instruction -> the kind of its scope and the stack.

  Args:
    text: of the compiled program.
    names: what stacks may be called, with those that have a "/" in them.
  """
  scopes, stacks = {}, set()
  for line in text.splitlines():
    found = _OP_NAME.match(line)
    if not found:
      continue
    instruction, path = found[1], _without_transforms(found[2])
    for kind, pattern in _SCOPES.items():
      scope = pattern.search(path)
      if scope:
        stack = _stack_of(scope[1], names)
        scopes[instruction] = kind, stack
        if kind != "convert" or path.endswith(_CONVERSION):
          stacks.add(stack)
        break
  # Others are modules of a model, in one that is called "convert".
  return {name: scope for name, scope in scopes.items() if scope[1] in stacks}


def _without_transforms(path: str) -> str:
  """transpose(jvp(Model))/convert/items as Model/convert/items."""
  count = 1
  while count:
    path, count = _TRANSFORMED.subn(r"\1", path)
  return path


def _stack_of(inside: str, names: set[str]) -> str:
  """The stack of STACK/cond/branch_0/add: the longest name that is known."""
  parts = inside.split("/")
  for length in range(len(parts) - 1, 1, -1):
    name = "/".join(parts[:length])
    if name in names:
      return name
  return parts[0]


def _keys(compiled: jax.stages.Compiled) -> set[str]:
  """Keys of all dicts in a program's arguments and results."""
  results = jax.tree.unflatten(
      compiled.out_tree, range(compiled.out_tree.num_leaves)
  )
  leaves = jax.tree.leaves_with_path((compiled.args_info, results))
  keys = (getattr(entry, "key", None) for path, _ in leaves for entry in path)
  return {key for key in keys if isinstance(key, str)}


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
