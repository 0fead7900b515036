# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""One workload, measured in turns on every package and on the floor."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.preprocessing import floor
from benchmarks.preprocessing import same_buffers
from benchmarks.preprocessing import workloads

# Of limits and buffers over what the batch needs.
_HEADROOM = 1.1

_ARRAYS = ("row_pointers", "embedding_ids", "sample_ids", "gains")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What one workload took, with weights or without."""

  workload: workloads.Workload
  has_weights: bool
  num_ids: int
  # "reference", "ours", "ours, native function", "ours, new memory", "ours, one
  # pass", "floor, new memory", "floor, reused memory": those that were measured.
  timings: dict[str, turns.Timing]
  # Why it was not measured, or where the packages differ.
  problem: str | None = None


class Difference(Exception):
  """The packages disagree; the text says where."""


def measure(
    workload: workloads.Workload,
    has_weights: bool,
    ours: worker_process.WorkerProcess,
    reference: worker_process.WorkerProcess | None,
    rounds: int,
    directory: pathlib.Path,
) -> Result:
  """Compares what the packages return, then times them in turns.

  Args:
    workload: what to convert.
    has_weights: with weights, or the same ids without.
    ours: a worker on this package.
    reference: a worker on the package to compare with, if there is one.
    rounds: how many samples of each.
    directory: an empty one for the data.
  """
  batch = workloads.make_batch(workload, has_weights)
  num_ids = sum(feature.ids.size for feature in batch)
  result = Result(
      workload=workload, has_weights=has_weights, num_ids=num_ids, timings={}
  )
  _write_batch(batch, directory)
  try:
    _write_case(
        workload,
        has_weights,
        _generous_limits(workload, batch),
        False,
        directory,
    )
    ours.command("load", directory=str(directory))
    (directory / "needs").mkdir()
    needs = ours.command("save", directory=str(directory / "needs"))
    _write_case(
        workload,
        has_weights,
        _limits(workload, needs),
        workload.enable_minibatching,
        directory,
    )
    output_sizes = _compare(workload, ours, reference, directory)
  except (worker_process.WorkerError, Difference) as error:
    return dataclasses.replace(result, problem=str(error))

  inputs = [feature.ids for feature in batch]
  if has_weights:
    inputs += [feature.weights for feature in batch]
  bottom = floor.Floor(inputs, output_sizes, machine.num_cpus())
  timed = {
      "ours": ours.timed(),
      "ours, native function": ours.timed(core=True),
      "floor, new memory": lambda calls: bottom.run(calls, reuse=False),
      "floor, reused memory": lambda calls: bottom.run(calls, reuse=True),
  }
  if ours.command("describe")["has_pool"]:
    timed["ours, new memory"] = ours.timed(new_memory=True)
  if workload.enable_minibatching and workload.num_minibatches == 1:
    timed["ours, one pass"] = ours.timed(one_pass=True)
  if reference is not None:
    timed["reference"] = reference.timed()
  return dataclasses.replace(result, timings=turns.take(timed, rounds))


def _write_batch(
    batch: Sequence[workloads.FeatureBatch], directory: pathlib.Path
) -> None:
  for i, feature in enumerate(batch):
    np.save(directory / f"{i}.ids.npy", feature.ids)
    np.save(directory / f"{i}.row_splits.npy", feature.row_splits)
    if feature.weights is not None:
      np.save(directory / f"{i}.weights.npy", feature.weights)


def _write_case(
    workload: workloads.Workload,
    has_weights: bool,
    limits: dict[str, Sequence[int]],
    enable_minibatching: bool,
    directory: pathlib.Path,
) -> None:
  """`limits`: stack -> ids, unique ids, cells per SparseCore."""
  case = dataclasses.asdict(workload)
  case |= case.pop("topology")
  case["has_weights"] = has_weights
  case["limits"] = limits
  case["enable_minibatching"] = enable_minibatching
  (directory / "case.json").write_text(json.dumps(case))


def _generous_limits(
    workload: workloads.Workload, batch: Sequence[workloads.FeatureBatch]
) -> dict[str, Sequence[int]]:
  """Limits that no distribution of the ids exceeds; for all stacks."""
  topology = workload.topology
  num_local_scs = topology.local_device_count * topology.num_sc_per_device
  per_sc = np.zeros(num_local_scs, np.int64)
  largest = 0
  for feature in batch:
    splits = feature.row_splits[:: workload.batch_size // num_local_scs]
    per_sc += np.diff(splits)
    largest = max(largest, int(np.diff(splits).max()))
  ids = int(per_sc.max()) if workload.stacked else largest
  num_scs = topology.global_device_count * topology.num_sc_per_device
  ids = max(ids, 1)
  cells = min(ids + 8 * num_scs, _round_up(ids) * num_scs)
  return {"*": [ids, ids, _round_up(cells)]}


def _limits(
    workload: workloads.Workload, needs: dict[str, Any]
) -> dict[str, Sequence[int]]:
  """Limits from what the batch needs, as a user would set them."""
  topology = workload.topology
  num_scs = topology.global_device_count * topology.num_sc_per_device
  num_passes = 64 if workload.enable_minibatching else 1
  limits = {}
  for stack, required in needs["required"].items():
    ids = math.ceil(workload.limit * max(needs["max_ids"][stack]))
    unique = math.ceil(workload.limit * max(needs["max_unique_ids"][stack]))
    cells = math.ceil(_HEADROOM * max(required))
    # Each minibatch rounds its partitions up.
    cells += 8 * num_scs * ((workload.num_minibatches or num_passes) - 1)
    cells = min(_round_up(cells), _round_up(ids) * num_scs * num_passes)
    limits[stack] = [max(ids, 1), max(unique, 1), max(cells, 8)]
  return limits


def _round_up(cells: int) -> int:
  return -(-cells // 8) * 8


def _compare(
    workload: workloads.Workload,
    ours: worker_process.WorkerProcess,
    reference: worker_process.WorkerProcess | None,
    directory: pathlib.Path,
) -> list[int]:
  """Loads the case everywhere; returns the sizes of the output arrays.

  Raises:
    Difference: if the packages do not return the same.
  """
  answers = {}
  for name, worker in (("ours", ours), ("reference", reference)):
    if worker is None:
      continue
    worker.command("load", directory=str(directory))
    (directory / name).mkdir()
    answers[name] = worker.command("save", directory=str(directory / name))
    if workload.num_minibatches not in (None, answers[name]["num_minibatches"]):
      raise Difference(
          f"{name}: {answers[name]['num_minibatches']} minibatches, meant to"
          f" be {workload.num_minibatches}."
      )
  if reference is not None and answers["ours"] != answers["reference"]:
    raise Difference("The stats or the numbers of minibatches differ.")
  sizes = []
  for stack in answers["ours"]["required"]:
    arrays = {
        name: {
            array: np.load(directory / name / f"{stack}.{array}.npy")
            for array in _ARRAYS
        }
        for name in answers
    }
    sizes += [array.size for array in arrays["ours"].values()]
    if reference is None:
      continue
    topology = workload.topology
    difference = same_buffers.first_difference(
        arrays["ours"],
        arrays["reference"],
        local_device_count=topology.local_device_count,
        num_sc_per_device=topology.num_sc_per_device,
        num_scs=topology.global_device_count * topology.num_sc_per_device,
        num_blocks_per_sc=answers["ours"]["num_minibatches"]
        if workload.enable_minibatching
        else None,
    )
    if difference:
      raise Difference(f"Stack {stack}: {difference}")
  return sizes


def ratio(
    result: Result,
    kind: str = "cpu",
    numerator: str = "reference",
    denominator: str = "ours",
) -> tuple[float, float, float]:
  """Of two timings: lower quartile, median, upper quartile over rounds."""
  return turns.quartiles_of_ratio(
      getattr(result.timings[numerator], kind),
      getattr(result.timings[denominator], kind),
  )
