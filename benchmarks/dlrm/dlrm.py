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
from typing import NamedTuple

from absl import app
from absl import flags
import numpy as np

from benchmarks import earlier_version
from benchmarks import machine
from benchmarks import results_folder
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.dlrm import cases
from benchmarks.dlrm import model_worker
from benchmarks.dlrm import ours_worker

_OURS, _TORCH, _BEFORE = "ours", "torch", "before"
_OURS_KEEPS = "ours, 1 GiB kept"

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

_Timings = Mapping[tuple[str, str], turns.Timing]  # By contender and part.


class Contender(NamedTuple):
  """Who is measured: a worker and how its process starts."""

  module: str
  python: str | None = None
  root: pathlib.Path | None = None
  kept_bytes: int = 64 << 20

  def start(self, preload: str) -> worker_process.WorkerProcess:
    return worker_process.WorkerProcess(
        f"benchmarks.dlrm.{self.module}",
        self.python,
        _ENVIRONMENT
        | {
            "LD_PRELOAD": preload,
            ours_worker.KEPT_BYTES: str(self.kept_bytes),
        },
        self.root,
    )


def _contenders() -> dict[str, Contender]:
  result = {
      _OURS: Contender("ours_worker"),
      _OURS_KEEPS: Contender("ours_worker", kept_bytes=1 << 30),
  }
  if root := earlier_version.root("benchmarks/dlrm"):
    result[_BEFORE] = Contender("ours_worker", root=root)
  python = pathlib.Path(_PEERS.value, "torch", "bin", "python")
  if python.exists():
    result[_TORCH] = Contender("torch_worker", str(python))
  return result


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


def _ratio(timings: _Timings, other: str, part: str, kind: str) -> str:
  """Median and quartiles of another one's time by ours."""
  low, middle, high = turns.quartiles_of_ratio(
      getattr(timings[other, part], kind), getattr(timings[_OURS, part], kind)
  )
  return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _head(case: cases.Case) -> str:
  return (
      f"## {case.name}\n\n"
      f"Batch {case.batch_size:,}; {cases.NUM_TABLES} tables of"
      f" {case.table_rows:,} rows x {case.embedding_dim}; bottom"
      f" {'-'.join(map(str, case.bottom_mlp))}, {case.cross_layers} cross layers"
      f" of rank {case.cross_rank} on {case.cross_dim} inputs, top"
      f" {'-'.join(map(str, case.top_mlp))}-1.\n\n"
  )


def _table(case: cases.Case, allocator: str, timings: _Timings) -> str:
  text = _row(
      [
          allocator,
          "part",
          "CPU ms",
          "wall ms",
          "samples/s",
          "by ours, CPU",
          "wall",
      ]
  )
  text += "|---|---|" + "--:|" * 5 + "\n"
  for (name, part), timing in timings.items():
    wall = turns.median(timing.wall)
    ratios = ["", ""]
    if name != _OURS:
      ratios = [_ratio(timings, name, part, kind) for kind in ("cpu", "wall")]
    text += _row(
        [
            name,
            part,
            f"{1e3 * turns.median(timing.cpu):.3g}",
            f"{1e3 * wall:.3g}",
            f"{case.batch_size / wall:,.0f}",
            *ratios,
        ]
    )
  return text + "\n"


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  folder = results_folder.make(_OUTPUT_DIR.value)
  load_before = os.getloadavg()[0]
  contenders, allocators = _contenders(), worker_process.allocators()
  sections, versions = [], {}
  for case in cases.CASES:
    chosen = cases.shrink(case) if _QUICK.value else case
    sections.append(_head(chosen))
    for allocator, preload in allocators.items():
      # Not all at once: each has its tables.
      with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(contender.start(preload))
            for name, contender in contenders.items()
            # What is kept there is malloc's of the C library.
            if not (preload and name == _OURS_KEEPS)
        }
        sections.append(_table(chosen, allocator, _measure(chosen, workers)))
        for worker in workers.values():
          versions |= worker.command("describe")
    print("".join(sections[-1 - len(allocators) :]), flush=True)
  missing = (
      ""
      if _TORCH in contenders
      else (
          "- PyTorch was not measured, since it is not installed. Run\n"
          "  benchmarks/lookup/install_peers.sh.\n"
      )
  )
  if len(allocators) == 1:
    missing += "- tcmalloc was not measured, since it is not installed.\n"
  text = f"""# A step of DLRM-DCNv2 on the CPU

Written by `bazel run //benchmarks/dlrm -- --output_dir=<this folder>`,
{datetime.date.today().isoformat()}. README.md says what is measured.

- Machine: {machine.describe()}; Linux. Load before and after the run:
  {load_before:.1f} and {os.getloadavg()[0]:.1f}. Compare inside a row first.
- {", ".join(f"{name} {version}" for name, version in versions.items())};
  {machine.num_cpus()} threads for everybody.
- {_ROUNDS.value} rounds, in turns of all with one malloc. Numbers are medians; a
  ratio is the median and the quartiles of the rounds' ratios, and above 1 where
  `ours` is faster.
{missing}
"""
  text += "".join(sections)
  if folder:
    (folder / "RESULTS.md").write_text(text)


if __name__ == "__main__":
  app.run(main)
