# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""How fast are lookup and update on the CPU?

Measures them beside PyTorch, FBGEMM, TensorFlow (installed by install_peers.sh)
and plain JAX, beside what the memory allows, and by themselves: the cost of a
call, of compiling, of a larger table, of more devices.

  benchmarks/lookup/install_peers.sh
  bazel run //benchmarks/lookup -- --output_dir=benchmarks/lookup
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import datetime
import json
import os
import pathlib
import re

from absl import app
from absl import flags

from benchmarks import machine
from benchmarks import results_folder
from benchmarks import worker_process
from benchmarks.lookup import cases
from benchmarks.lookup import compile_time
from benchmarks.lookup import devices
from benchmarks.lookup import dispatch
from benchmarks.lookup import estimates
from benchmarks.lookup import measure
from benchmarks.lookup import report
from benchmarks.lookup import table_size

_SECTIONS = {
    "dispatch": dispatch.section,
    "table_size": table_size.section,
    "compile_time": compile_time.section,
    "devices": devices.section,
    "estimates": estimates.section,
}

_PEERS = flags.DEFINE_string(
    "peers",
    os.path.expanduser("~/.cache/jax_tpu_embedding/lookup_peers"),
    "Folder with the virtual environments of the peers. Those that are not"
    " there are left out.",
)
_CASES = flags.DEFINE_string(
    "cases", "", "Measure only cases whose name and step match this regex."
)
_ONLY = flags.DEFINE_multi_enum(
    "only", [], ["peers", *_SECTIONS], "Measure only these."
)
_ROUNDS = flags.DEFINE_integer("rounds", 11, "Samples per measurement.", 2)
_QUICK = flags.DEFINE_bool(
    "quick", False, "Tiny sizes: the numbers mean nothing."
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir",
    None,
    "Write RESULTS.md and results.json here, from the workspace.",
)


def _chosen() -> list[tuple[cases.Case, str]]:
  """The cases, with their steps, that --cases asks for.

  Raises:
    app.UsageError: if there are none.
  """
  everything = [(case, step) for case in cases.CASES for step in cases.STEPS]
  name = lambda chosen: f"{chosen[0].name}, {chosen[1]}"
  chosen = [x for x in everything if re.search(_CASES.value, name(x))]
  if not chosen:
    raise app.UsageError(
        f"--cases={_CASES.value!r} matches none of:\n"
        + "\n".join(map(name, everything))
    )
  return chosen


def _workers(
    stack: contextlib.ExitStack,
) -> tuple[list[worker_process.WorkerProcess], str]:
  """A process for each package; a line on those that are not installed."""
  modules = {"ours": None, "jax": None}
  missing = []
  for name in ("torch", "tensorflow"):
    python = pathlib.Path(_PEERS.value, name, "bin", "python")
    if python.exists():
      modules[name] = str(python)
    else:
      missing.append(name)
  workers = [
      stack.enter_context(
          worker_process.WorkerProcess(
              f"benchmarks.lookup.{name}_worker",
              python,
              None if name == "ours" else worker_process.ENVIRONMENT_OF_PEERS,
          )
      )
      for name, python in modules.items()
  ]
  if not missing:
    return workers, ""
  return workers, (
      f"- Not measured: {', '.join(missing)}, since not installed. Run"
      " benchmarks/lookup/install_peers.sh.\n"
  )


@contextlib.contextmanager
def _on_cpus(count: int) -> Iterator[None]:
  """What is started meanwhile may use so many of this process's CPUs."""
  cpus = os.sched_getaffinity(0)
  os.sched_setaffinity(0, sorted(cpus)[-count:])
  try:
    yield
  finally:
    os.sched_setaffinity(0, cpus)


def _measure_peers(
    chosen: Sequence[tuple[cases.Case, str]], num_cpus: int
) -> tuple[list[measure.Result], str, str]:
  """Results, a line of versions, and a line on what is missing.

  Args:
    chosen: cases, and their steps.
    num_cpus: that everybody may use.
  """
  results = []
  with contextlib.ExitStack() as stack:
    stack.enter_context(_on_cpus(num_cpus))
    workers, missing = _workers(stack)
    for case, step in chosen:
      case = cases.shrink(case) if _QUICK.value else case
      result = measure.measure(case, step, workers, num_cpus, _ROUNDS.value)
      print(report.row(result), result.problems or "", flush=True)
      results.append(result)
    versions = {}
    for worker in workers:
      versions |= worker.command("describe")
  return (
      results,
      ", ".join(f"{name} {version}" for name, version in versions.items()),
      missing,
  )


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  only = _ONLY.value or ["peers", *_SECTIONS]
  chosen = _chosen() if "peers" in only else []
  part_by = "--only or --cases" if _ONLY.value or _CASES.value else None
  folder = results_folder.make(_OUTPUT_DIR.value, part_by=part_by)
  load_before = os.getloadavg()[0]
  results, versions, missing = [], "", ""
  sections = []
  if "peers" in only:
    for num_cpus in sorted({1, machine.num_cpus()}):
      of_cpus, versions, missing = _measure_peers(chosen, num_cpus)
      sections.append(report.section(of_cpus, num_cpus))
      results += of_cpus
  for name, section in _SECTIONS.items():
    if name in only:
      sections.append(section(_ROUNDS.value, _QUICK.value))
      print(sections[-1], flush=True)
  text = f"""# Lookup and update on the CPU

Written by `bazel run //benchmarks/lookup -- --output_dir=<this folder>`,
{datetime.date.today().isoformat()}. README.md says what the columns are.

- Machine: {machine.describe()}; Linux. Load before and after the run:
  {load_before:.1f} and {os.getloadavg()[0]:.1f}. Compare inside a row first.
- {versions or "No peers"}; everybody has as many threads as CPUs.
- {_ROUNDS.value} rounds. Numbers are medians; a ratio is the median of the
  rounds' ratios.
{missing}
"""
  text += "\n".join(sections)
  print(text)
  if folder:
    (folder / "RESULTS.md").write_text(text)
    if results:
      (folder / "results.json").write_text(
          json.dumps(report.as_json(results), indent=1) + "\n"
      )
  beaten = report.who_beat_the_limit(results)
  if beaten and not _QUICK.value:
    raise SystemExit(
        "The limit is none: it was slower in three of four rounds than\n"
        f"{beaten}Give limit.py a strategy that is as fast, and run again."
    )


if __name__ == "__main__":
  app.run(main)
