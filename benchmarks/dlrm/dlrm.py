# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""How fast is a step of DLRM-DCNv2 on the CPU, beside PyTorch?

benchmarks/lookup/install_peers.sh
bazel run //benchmarks/dlrm -- --output_dir=benchmarks/dlrm
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import os
import pathlib

from absl import app
from absl import flags
import numpy as np

from benchmarks import machine
from benchmarks import results_folder
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.dlrm import cases
from benchmarks.dlrm import model_worker

_OURS, _TORCH = "ours", "torch"

# Threads of OpenMP that wait must not spin: PyTorch's CPU time would be more,
# and on a busy machine several times as much.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
# Losses are equal but for the order of sums.
_LOSS_TOLERANCE = 1e-3

_PEERS = flags.DEFINE_string(
    "peers",
    os.path.expanduser("~/.cache/jax_tpu_embedding/lookup_peers"),
    "Folder with the virtual environment `torch`. Without it, only this package"
    " is measured.",
)
_ROUNDS = flags.DEFINE_integer("rounds", 11, "Samples per measurement.", 2)
_QUICK = flags.DEFINE_bool(
    "quick", False, "Tiny sizes: the numbers mean nothing."
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Write RESULTS.md here, from the workspace."
)

_Timings = Mapping[tuple[str, str], turns.Timing]  # By package and part.


def _measure(
    case: cases.Case, workers: Mapping[str, worker_process.WorkerProcess]
) -> _Timings:
  """Every part of every package in turns.

  Raises:
    RuntimeError: the packages do not compute the same.
  """
  losses = {
      name: worker.command("load", case=dataclasses.asdict(case))["losses"]
      for name, worker in workers.items()
  }
  for name, of_name in losses.items():
    if not np.allclose(of_name, losses[_OURS], rtol=0, atol=_LOSS_TOLERANCE):
      raise RuntimeError(
          f"{case.name}: the first losses of {name} are {of_name}, ours are"
          f" {losses[_OURS]}."
      )
  timed = {
      (name, part): worker.timed(part=part)
      for name, worker in workers.items()
      for part in model_worker.PARTS
  }
  return turns.take(timed, _ROUNDS.value)


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |\n"


def _ratio(timings: _Timings, part: str, kind: str) -> str:
  """Median and quartiles of PyTorch's time by ours."""
  low, middle, high = turns.quartiles_of_ratio(
      getattr(timings[_TORCH, part], kind), getattr(timings[_OURS, part], kind)
  )
  return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _section(case: cases.Case, timings: _Timings) -> str:
  names = list(dict.fromkeys(name for name, _ in timings))
  has_torch = _TORCH in names
  head = ["part"]
  for name in names:
    head += [f"{name}: CPU ms", "wall ms", "samples/s"]
  if has_torch:
    head += ["torch / ours, CPU", "wall"]
  text = (
      f"## {case.name}\n\n"
      f"Batch {case.batch_size:,}; {cases.NUM_TABLES} tables of"
      f" {case.table_rows:,} rows x {case.embedding_dim}; bottom"
      f" {'-'.join(map(str, case.bottom_mlp))}, {case.cross_layers} cross layers"
      f" of rank {case.cross_rank} on {case.cross_dim} inputs, top"
      f" {'-'.join(map(str, case.top_mlp))}-1.\n\n"
  )
  text += _row(head) + "|---|" + "--:|" * (len(head) - 1) + "\n"
  for part in model_worker.PARTS:
    cells = [part]
    for name in names:
      timing = timings[name, part]
      wall = turns.median(timing.wall)
      cells += [
          f"{1e3 * turns.median(timing.cpu):.3g}",
          f"{1e3 * wall:.3g}",
          f"{case.batch_size / wall:,.0f}",
      ]
    if has_torch:
      cells += [_ratio(timings, part, "cpu"), _ratio(timings, part, "wall")]
    text += _row(cells)
  return text


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  folder = results_folder.make(_OUTPUT_DIR.value)
  load_before = os.getloadavg()[0]
  pythons = {_OURS: None}
  torch_python = pathlib.Path(_PEERS.value, "torch", "bin", "python")
  if torch_python.exists():
    pythons[_TORCH] = str(torch_python)
  sections = []
  with contextlib.ExitStack() as stack:
    workers = {
        name: stack.enter_context(
            worker_process.WorkerProcess(
                f"benchmarks.dlrm.{name}_worker", python, _ENVIRONMENT
            )
        )
        for name, python in pythons.items()
    }
    for case in cases.CASES:
      chosen = cases.shrink(case) if _QUICK.value else case
      sections.append(_section(chosen, _measure(chosen, workers)))
      print(sections[-1], flush=True)
    versions = {}
    for worker in workers.values():
      versions |= worker.command("describe")
  missing = (
      ""
      if _TORCH in pythons
      else (
          "- PyTorch was not measured, since it is not installed. Run\n"
          "  benchmarks/lookup/install_peers.sh.\n"
      )
  )
  text = f"""# A step of DLRM-DCNv2 on the CPU

Written by `bazel run //benchmarks/dlrm -- --output_dir=<this folder>`,
{datetime.date.today().isoformat()}. README.md says what is measured.

- Machine: {machine.describe()}; Linux. Load before and after the run:
  {load_before:.1f} and {os.getloadavg()[0]:.1f}. Compare inside a row first.
- {", ".join(f"{name} {version}" for name, version in versions.items())};
  {machine.num_cpus()} threads for everybody.
- {_ROUNDS.value} rounds, in turns. Numbers are medians; a ratio is the median
  and the quartiles of the rounds' ratios, and above 1 where we are faster.
{missing}
"""
  text += "\n".join(sections)
  if folder:
    (folder / "RESULTS.md").write_text(text)


if __name__ == "__main__":
  app.run(main)
