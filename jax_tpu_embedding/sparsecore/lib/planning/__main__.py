# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a model takes of devices, from the command line.

python -m jax_tpu_embedding.sparsecore.lib.planning model.py:feature_specs \
    --topology v5p:2x2x1,v6e:4x4 --zipf 1.05
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import sys

from jax_tpu_embedding.sparsecore.lib.core import standard_output
from jax_tpu_embedding.sparsecore.lib.planning import cost_report
from jax_tpu_embedding.sparsecore.lib.planning import model_file
from jax_tpu_embedding.sparsecore.lib.planning import workload


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a report for each topology; returns the exit status."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.planning",
      description="What a model takes of devices that are not there.",
  )
  parser.add_argument(
      "model",
      help=model_file.HELP,
  )
  parser.add_argument(
      "--topology", required=True, help="v5p:2x2x1, cpu:4, ...; or several: a,b"
  )
  parser.add_argument("--zipf", type=float, help="exponent; default: uniform")
  parser.add_argument("--batch", type=int, help="samples of all devices")
  parser.add_argument(
      "--ids-per-sample",
      action="append",
      default=[],
      metavar="FEATURE=MEAN",
      help="for features with samples of any length; may be repeated",
  )
  parser.add_argument("--plot", help="file of the picture; one topology")
  parser.add_argument("--json", action="store_true", help="numbers, not text")
  parser.add_argument(
      "--measured-lookup-ms",
      type=float,
      help="what the lookups of a step took, to calibrate",
  )
  arguments = parser.parse_args(argv)
  names = arguments.topology.split(",")
  try:
    if arguments.plot and len(names) > 1:
      raise ValueError("--plot draws one topology, and there are several.")
    specs = model_file.load(arguments.model, batch=arguments.batch)
    law = workload.Uniform()
    if arguments.zipf is not None:
      law = workload.Zipf(arguments.zipf)
    means = dict(map(_mean, arguments.ids_per_sample))
    reports = [
        cost_report.estimate(specs, name, workload=law, ids_per_sample=means)
        for name in names
    ]
    if arguments.measured_lookup_ms is not None:
      seconds = arguments.measured_lookup_ms / 1e3
      reports = [x.with_measured_lookup(seconds) for x in reports]
  except (OSError, TypeError, ValueError) as error:
    print(error, file=sys.stderr)
    return 1
  if arguments.plot:
    try:
      reports[0].plot(arguments.plot)
    # Without matplotlib, for one. An import that a model's program lacks, in
    # contrast, has a traceback that says where.
    except (ImportError, OSError, ValueError) as error:
      print(error, file=sys.stderr)
      return 1
  if arguments.json:
    print(json.dumps([json.loads(x.to_json()) for x in reports], indent=2))
  else:
    if len(reports) > 1:
      print(_rows(reports), end="\n\n")
    print("\n\n".join(x.describe() for x in reports))
  return 0


def _mean(text: str) -> tuple[str, float]:
  """The feature and the mean of "item=7.5"."""
  feature, _, mean = text.rpartition("=")
  try:
    number = float(mean)
  except ValueError:
    number = None
  if not feature or number is None:
    raise ValueError(
        f"--ids-per-sample is FEATURE=MEAN, like item=7.5, got {text!r}."
    )
  return feature, number


def _rows(reports: Sequence[cost_report.CostReport]) -> str:
  """A row for each topology."""
  return "\n".join(
      f"{x.topology.name:14} {x.bytes_per_device() / 2**30:8.2f} of"
      f" {x.topology.chip.memory_bytes / 2**30:6.1f} GiB  lookup"
      f" {x.lookup_seconds * 1e3:8.3f} ms  update {x.update_seconds * 1e3:8.3f}"
      " ms"
      for x in reports
  )


if __name__ == "__main__":
  standard_output.run(main)
