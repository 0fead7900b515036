# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What splitting a batch over several host devices costs.

The devices share the CPUs, so that the ideal is the same CPU time. What comes
on top is the exchange of ids and rows between them, and calling each.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
from jax_tpu_embedding.sparsecore.lib.core import memory
from jax_tpu_embedding.sparsecore.lib.nn import embedding
import numpy as np

from benchmarks import machine
from benchmarks import turns
from benchmarks import worker_process
from benchmarks.lookup import cases
from benchmarks.lookup import ours_worker

_NUM_DEVICES = (1, 4)
_TARGET_RATIO = 1.5


class Worker:
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory()

  def load(self, case: dict[str, Any], step: str) -> dict[str, Any]:
    """Makes the step over all devices of the process, and does it once.

    Returns:
      "sum": of all elements of the table after the step, to compare.
    """
    case = cases.Case(**case)
    num_devices = jax.device_count()
    specs = ours_worker.make_specs(case, step, num_devices)
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    self._variables = ours_worker.make_variables(specs, mesh)
    self._inputs = [
        jax.device_put(ours_worker.convert(specs, batch, num_devices), sharding)
        for batch in cases.make_batches(case)
    ]
    self._gradients = [jax.device_put(cases.make_gradient(case), sharding)]

    def train(variables, inputs, gradients):
      activations = embedding.tpu_sparse_dense_matmul(inputs, variables, specs)
      return activations, embedding.tpu_sparse_dense_matmul_grad(
          gradients, inputs, variables, specs
      )

    self._train = jax.jit(
        jax.shard_map(
            train, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        ),
        donate_argnums=0,
    )
    self._batch_number = 0
    self._step()
    table = jax.tree.leaves(self._variables)[0]
    return {"sum": float(np.abs(np.asarray(table), dtype=np.float64).sum())}

  def _step(self) -> None:
    inputs = self._inputs[self._batch_number]
    self._batch_number = (self._batch_number + 1) % len(self._inputs)
    activations, self._variables = self._train(
        self._variables, inputs, self._gradients
    )
    jax.block_until_ready((activations, self._variables))

  def run(self, calls: int) -> dict[str, float]:
    """Times `calls` steps."""
    return turns.time_calls(self._step, calls)


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  text = f"""## Several devices

One batch on 1 and on {_NUM_DEVICES[1]} host devices of a process with
{machine.num_cpus()} CPUs, in turns; at most {_TARGET_RATIO} times the CPU time of one. Each row has
processes of its own.

| case | step | 1 device, CPU ms | wall ms | {_NUM_DEVICES[1]} devices, CPU ms | wall ms | CPU time of {_NUM_DEVICES[1]} / of 1 (quartiles) | |
|---|---|--:|--:|--:|--:|--:|---|
"""
  # Small ones differ in nothing, and each has processes of its own.
  chosen = [cases.shrink(cases.CASES[0])] if quick else cases.CASES
  for case in chosen:
    for step in (cases.SGD, cases.ADAGRAD):
      text += _row(case, step, rounds)
  return text


def _row(case: cases.Case, step: str, rounds: int) -> str:
  label = f"| {case.name} | {step}"
  with contextlib.ExitStack() as stack:
    # Of the row alone: tables of earlier rows would leave memory behind, in
    # large pages here and in small ones there.
    workers = {
        n: stack.enter_context(
            worker_process.WorkerProcess(
                __name__,
                environment={
                    "XLA_FLAGS": f"--xla_force_host_platform_device_count={n}"
                },
            )
        )
        for n in _NUM_DEVICES
    }
    try:
      sums = [
          worker.command("load", case=dataclasses.asdict(case), step=step)[
              "sum"
          ]
          for worker in workers.values()
      ]
    except worker_process.WorkerError as error:
      return f"{label} | not measured: {error} | | | | | |\n"
    if not np.isclose(*sums, rtol=1e-5):
      return f"{label} | not measured: the tables differ | | | | | |\n"
    one, many = turns.take(
        {n: worker.timed() for n, worker in workers.items()}, rounds
    ).values()
  low, ratio, high = turns.quartiles_of_ratio(many.cpu, one.cpu)
  cells = [
      f"{1e3 * turns.median(seconds):.3g}"
      for seconds in (one.cpu, one.wall, many.cpu, many.wall)
  ]
  verdict = "yes" if ratio <= _TARGET_RATIO else "**no**"
  return (
      f"{label} | {' | '.join(cells)} | {ratio:.2f} ({low:.2f} - {high:.2f})"
      f" | {verdict} |\n"
  )
