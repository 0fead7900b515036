# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What agreeing on minibatches costs, by the number of hosts."""

from __future__ import annotations

from collections.abc import Sequence
import multiprocessing
import random
import time

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports
from jax_tpu_embedding.sparsecore.lib.core.testing import simulated_agreement

from benchmarks.scale import curve

# A message takes half of the CPU time that two processes need for one each way,
# which was 1.5 ms on a busy machine, and is 0.05 to 0.5 ms on its way.
_NETWORK = simulated_agreement.Network(
    work=7.5e-4, min_delay=5e-5, max_delay=5e-4
)
_NUM_HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# A million messages take minutes to simulate.
_MOST_WHERE_EVERYONE_IS_TOLD = 256
# Processes on this machine, over its loopback interface.
_NUM_PROCESSES = (2, 4, 8, 16)
_REDUCTIONS = 50
_SPAWN = multiprocessing.get_context("spawn")


def _simulate(num_hosts: int) -> curve.Point:
  rng = random.Random(0)
  values = [rng.random() < 0.01 for _ in range(num_hosts)]
  point = {"hosts": num_hosts}
  for name, strangers in (("in rounds", ()), ("everyone", range(num_hosts))):
    of_messages, of_time = f"{name}, messages per host", f"{name}, ms"
    if strangers and num_hosts > _MOST_WHERE_EVERYONE_IS_TOLD:
      point |= {of_messages: None, of_time: None}
      continue
    hosts = simulated_agreement.reduce(
        values, rng, _NETWORK, strangers=strangers
    )
    assert {host.result for host in hosts} == {any(values)}
    point[of_messages] = max(host.num_sent for host in hosts)
    point[of_time] = 1e3 * max(host.ended_at for host in hosts)
  return point


def _run_host(
    pipe: multiprocessing.connection.Connection,
    task_id: int,
    ports: Sequence[int],
) -> None:
  """A host in a process: reduces as often as it is told, and says how long."""
  peers = [f"localhost:{port}" for port in ports if port != ports[task_id]]
  with minibatching_node.MinibatchingNode(
      task_id, len(ports), peers, ports[task_id]
  ) as node:
    node.reduce(0, False)  # finds the others
    pipe.send(None)
    pipe.recv()  # all have
    cpu, wall = time.process_time(), time.perf_counter()
    for key in range(1, _REDUCTIONS + 1):
      node.reduce(key, key % 7 == task_id)
    wall = time.perf_counter() - wall
    pipe.send((time.process_time() - cpu, wall))
    pipe.recv()  # all are done


def _reduce_here(num_processes: int) -> curve.Point:
  ports = local_ports.free(num_processes)
  pipes, processes = [], []
  for task_id in range(num_processes):
    pipe, of_process = _SPAWN.Pipe()
    process = _SPAWN.Process(
        target=_run_host, args=(of_process, task_id, ports), daemon=True
    )
    process.start()
    pipes.append(pipe)
    processes.append(process)
  answers = []
  for _ in range(2):
    answers = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
      pipe.send(None)
  for process in processes:
    process.join()
  return {
      "processes": num_processes,
      "CPU of each, ms": 1e3
      * sum(cpu for cpu, _ in answers)
      / num_processes
      / _REDUCTIONS,
      "wall, ms": 1e3 * max(wall for _, wall in answers) / _REDUCTIONS,
  }


def measure(is_quick: bool) -> list[curve.Curve]:
  num_hosts = _NUM_HOSTS[:4] if is_quick else _NUM_HOSTS
  num_processes = _NUM_PROCESSES[:1] if is_quick else _NUM_PROCESSES
  return [
      curve.Curve(
          name="agreement",
          title="Hosts that agree on minibatches, simulated",
          text=(
              "One reduction, as `lib/core/all_reduce` runs it, over a simulated"
              f" network: a message takes {1e3 * _NETWORK.work:g} ms of its"
              " sender and of its receiver, one after the other, and"
              f" {1e3 * _NETWORK.min_delay:g} to {1e3 * _NETWORK.max_delay:g}"
              " ms on its way. In rounds: what hosts do that know each other,"
              " if they are more than four. Everyone: each tells every other"
              " one, as in the first reduction. ms: until the last host knows."
          ),
          x="hosts",
          points=[_simulate(n) for n in num_hosts],
      ),
      curve.Curve(
          name="agreement_here",
          title="Processes that agree on minibatches, on this machine",
          text=(
              f"The mean of {_REDUCTIONS} reductions over gRPC and the loopback"
              " interface, with all processes on the CPUs of this machine, so"
              " that the wall time is that of all of them."
          ),
          x="processes",
          points=[_reduce_here(n) for n in num_processes],
      ),
  ]
