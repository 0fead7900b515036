# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What splitting a batch over several devices or processes costs.

They share the CPUs, so that the ideal is the same CPU time. What comes on top
is the exchange of ids and rows between them, and calling each. Devices of one
process read each other's memory; processes send messages, through the system.
"""

from __future__ import annotations

from concurrent import futures
import contextlib
import dataclasses
import socket
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
_NUM_PROCESSES = 2  # of one device each
_TARGET_RATIO = 1.5
_TARGET_RATIO_OF_PROCESSES = 3
# Of several processes: more than a step sends and receives.
_KEPT_BYTES = 1 << 30
_NO_CELLS = 10 * " |" + "\n"


class Worker:
  """The commands."""

  def __init__(self):
    memory.keep_freed_memory()

  def connect(self, address: str, process: int) -> dict[str, Any]:
    """Makes this one of the processes, before anything else."""
    memory.keep_freed_memory(_KEPT_BYTES)
    jax.distributed.initialize(address, _NUM_PROCESSES, process)
    return {}

  def disconnect(self) -> dict[str, Any]:
    """Waits for the others: they must all do it, before they end."""
    jax.distributed.shutdown()
    return {}

  def load(self, case: dict[str, Any], step: str) -> dict[str, Any]:
    """Makes the step over all devices of all processes, and does it once.

    Returns:
      "sum": of the elements of this process's part of the table after the step,
        to compare.
    """
    case = cases.Case(**case)
    num_devices = jax.device_count()
    specs = ours_worker.make_specs(case, step, num_devices)
    mesh = jax.sharding.Mesh(jax.devices(), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    self._variables = ours_worker.make_variables(specs, mesh)
    limits = embedding.AdaptiveLimits(
        specs, num_devices, num_devices, num_sc_per_device=1
    )
    inputs = [
        limits.preprocess([batch.ids], [batch.weights])[0]
        for batch in cases.make_batches(case)
    ]
    self._inputs = [_split(limits.pad(x), sharding) for x in inputs]
    self._gradients = [_split(cases.make_gradient(case), sharding)]

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
    parts = [np.asarray(shard.data) for shard in table.addressable_shards]
    return {"sum": float(sum(np.abs(x, dtype=np.float64).sum() for x in parts))}

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


def _split(tree: Any, sharding: jax.sharding.Sharding) -> Any:
  """Global arrays of what every process has whole."""
  return jax.tree.map(
      lambda x: jax.make_array_from_callback(
          x.shape, sharding, lambda index: x[index]
      ),
      tree,
  )


class _Processes:
  """The commands, to several workers at a time."""

  def __init__(self, stack: contextlib.ExitStack):
    self._workers = [
        stack.enter_context(worker_process.WorkerProcess(__name__))
        for _ in range(_NUM_PROCESSES)
    ]
    self._threads = stack.enter_context(
        futures.ThreadPoolExecutor(_NUM_PROCESSES)
    )
    with socket.socket() as free:
      free.bind(("localhost", 0))
      address = f"localhost:{free.getsockname()[1]}"
    self._all(
        "connect",
        [dict(address=address, process=i) for i in range(_NUM_PROCESSES)],
    )
    stack.callback(self.command, "disconnect")

  def _all(self, name: str, arguments: list[dict[str, Any]]) -> list[Any]:
    return list(
        self._threads.map(
            lambda worker, of: worker.command(name, **of),
            self._workers,
            arguments,
        )
    )

  def command(self, name: str, **arguments: Any) -> dict[str, float]:
    """The sums of the answers."""
    answers = self._all(name, [arguments] * _NUM_PROCESSES)
    return {key: sum(x[key] for x in answers) for key in answers[0]}

  def timed(self):
    """As of a worker: CPU time of all, and the mean of their wall times."""

    def run(calls: int) -> dict[str, float]:
      seconds = self.command("run", calls=calls)
      return seconds | {"wall": seconds["wall"] / _NUM_PROCESSES}

    return run


def section(rounds: int, quick: bool) -> str:
  """The part of RESULTS.md on it."""
  text = f"""## Several devices

One batch on 1 and on {_NUM_DEVICES[1]} host devices of a process with
{machine.num_cpus()} CPUs, and on {_NUM_PROCESSES} processes of one device that send messages, in turns; at most
{_TARGET_RATIO} and {_TARGET_RATIO_OF_PROCESSES} times the CPU time of one. Each row has processes of its own. Limits are those of
`AdaptiveLimits`, and the processes keep {_KEPT_BYTES >> 20} MiB of freed memory.

| case | step | 1 device, CPU ms | wall ms | {_NUM_DEVICES[1]} devices, CPU ms | wall ms | {_NUM_PROCESSES} processes, CPU ms | wall ms | CPU time of {_NUM_DEVICES[1]} devices / of 1 (quartiles) | | of {_NUM_PROCESSES} processes / of 1 | |
|---|---|--:|--:|--:|--:|--:|--:|--:|---|--:|---|
"""
  chosen, steps = cases.CASES, (cases.SGD, cases.ADAGRAD)
  if quick:
    # Small ones differ in nothing, and each has processes of its own.
    chosen, steps = [cases.shrink(chosen[0])], steps[:1]
  for case in chosen:
    for step in steps:
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
      workers[0] = _Processes(stack)
      sums = [
          worker.command("load", case=dataclasses.asdict(case), step=step)[
              "sum"
          ]
          for worker in workers.values()
      ]
    except worker_process.WorkerError as error:
      return f"{label} | not measured: {error}{_NO_CELLS}"
    if not np.allclose(sums, sums[0], rtol=1e-5):
      return f"{label} | not measured: the tables differ{_NO_CELLS}"
    timings = turns.take(
        {n: worker.timed() for n, worker in workers.items()}, rounds
    ).values()
  cells = [
      f"{1e3 * turns.median(seconds):.3g}"
      for timing in timings
      for seconds in (timing.cpu, timing.wall)
  ]
  one, *others = timings
  for other, target in zip(
      others, (_TARGET_RATIO, _TARGET_RATIO_OF_PROCESSES), strict=True
  ):
    low, ratio, high = turns.quartiles_of_ratio(other.cpu, one.cpu)
    cells.append(f"{ratio:.2f} ({low:.2f} - {high:.2f})")
    cells.append("yes" if ratio <= target else "**no**")
  return f"{label} | {' | '.join(cells)} |\n"
