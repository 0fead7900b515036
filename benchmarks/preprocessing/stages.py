# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Where the converter's time goes, from its C++ benchmark."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess

_BENCHMARK = (
    pathlib.Path(__file__).parents[2]
    / "jax_tpu_embedding/sparsecore/cc/convert/stages_benchmark"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
  """One workload on one thread; nanoseconds per id."""

  workload: str  # as in workloads.py
  has_weights: bool
  extract: float
  sort: float
  fill: float
  allocate: float


def measure(quick: bool) -> list[Stages]:
  """Runs the benchmark. `quick`: once, the smallest workload alone."""
  arguments = ["--benchmark_format=json"]
  if quick:
    arguments += ["--benchmark_filter=one table", "--benchmark_min_time=0.001"]
  else:
    arguments += ["--benchmark_repetitions=5", "--benchmark_min_time=0.1"]
  output = subprocess.run(
      [_BENCHMARK, *arguments],
      check=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
  ).stdout
  stages = []
  for run in json.loads(output)["benchmarks"]:
    if not quick and run.get("aggregate_name") != "median":
      continue
    workload, weights = run["run_name"].rsplit("/", 1)
    stages.append(
        Stages(
            workload=workload,
            has_weights=weights == "weights",
            **{
                name: run[name]
                for name in ("extract", "sort", "fill", "allocate")
            },
        )
    )
  return stages
