# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

r"""How long does the host take to convert a step's ids to buffers?

Measures the public entry point of this package, beside it in turns the
package it is compatible with (installed by install_reference.sh), and the
physical floor: moving the memory of input and output.

  benchmarks/preprocessing/install_reference.sh
  bazel run //benchmarks/preprocessing -- \
      --output_dir=benchmarks/preprocessing
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile

from absl import app
from absl import flags

from benchmarks import results_folder
from benchmarks import worker_process
from benchmarks.preprocessing import measure
from benchmarks.preprocessing import report
from benchmarks.preprocessing import stages
from benchmarks.preprocessing import workloads

_WORKER = "benchmarks.preprocessing.worker"

_REFERENCE = flags.DEFINE_string(
    "reference",
    os.path.expanduser("~/.cache/jax_tpu_embedding/reference_0.1.0"),
    "Virtual environment with the package to compare with; empty: none.",
)
_WORKLOADS = flags.DEFINE_string(
    "workloads", "", "Measure only workloads whose name matches this regex."
)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Samples per measurement.", 2)
_QUICK = flags.DEFINE_bool(
    "quick", False, "Tiny batches: the numbers mean nothing."
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir",
    None,
    "Write RESULTS.md and results.json here, from the workspace.",
)


def _reference_python() -> str | None:
  if not _REFERENCE.value:
    return None
  python = pathlib.Path(_REFERENCE.value, "bin", "python")
  if not python.exists():
    raise app.UsageError(
        f"{python} is not there. Run"
        " benchmarks/preprocessing/install_reference.sh, or pass --reference= to"
        " measure without it."
    )
  return str(python)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
  chosen = [
      w for w in workloads.WORKLOADS if re.search(_WORKLOADS.value, w.name)
  ]
  if not chosen:
    raise app.UsageError(
        f"--workloads={_WORKLOADS.value!r} matches none of:\n"
        + "\n".join(w.name for w in workloads.WORKLOADS)
    )
  if _QUICK.value:
    chosen = [workloads.shrink(workload) for workload in chosen]
  folder = results_folder.make(
      _OUTPUT_DIR.value, part_by=_WORKLOADS.value and "--workloads"
  )
  load_before = os.getloadavg()[0]
  results = []
  with contextlib.ExitStack() as stack:
    ours = stack.enter_context(worker_process.WorkerProcess(_WORKER))
    python = _reference_python()
    reference = python and stack.enter_context(
        worker_process.WorkerProcess(_WORKER, python)
    )
    for workload in chosen:
      for has_weights in (False, True)[: 1 + workload.can_have_weights]:
        with tempfile.TemporaryDirectory() as directory:
          result = measure.measure(
              workload,
              has_weights,
              ours,
              reference,
              _ROUNDS.value,
              pathlib.Path(directory),
          )
        print(report.cpu_row(result), flush=True)
        results.append(result)
    versions = {"ours": ours.command("describe")}
    if reference:
      versions["reference"] = reference.command("describe")
  of_stages = stages.measure(_QUICK.value)
  text = report.markdown(
      results, of_stages, versions, _ROUNDS.value, load_before
  )
  print(text)
  if folder:
    (folder / "RESULTS.md").write_text(text)
    (folder / "results.json").write_text(
        json.dumps(report.as_json(results, of_stages, versions), indent=1)
        + "\n"
    )
  if any(result.problem for result in results):
    sys.exit("Not every workload could be measured; see above.")


if __name__ == "__main__":
  app.run(main)
