# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A job of several processes on this machine, with jax.distributed, for tests.

job = process_job.ProcessJob(self, work, num_processes=2, num_devices=4)
results = job.results()
"""

from __future__ import annotations

from collections.abc import Callable
import multiprocessing
from multiprocessing import connection
import traceback
from typing import Any

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.lib.core.testing import local_ports

_SPAWN = multiprocessing.get_context("spawn")
_TIMEOUT_SECONDS = 240


class ProcessJob:
  """Starts the processes; the test may do something else meanwhile."""

  def __init__(
      self,
      test: absltest.TestCase,
      work: Callable[[], Any],
      *,
      num_processes: int,
      num_devices: int,
  ):
    """Starts the processes, each of which calls `work`.

    Args:
      test: kills what is left of them when it ends.
      work: a function of a module, so that another process finds it. Its result
        is to be picklable.
      num_processes: of the job.
      num_devices: CPU devices of all processes.
    """
    self._test = test
    self._processes, self._pipes = [], []
    (port,) = local_ports.free(1)
    for number in range(num_processes):
      pipe, of_process = _SPAWN.Pipe()
      process = _SPAWN.Process(
          target=_run,
          args=(of_process, work, number, num_processes, num_devices, port),
          daemon=True,
      )
      process.start()
      of_process.close()  # The last one open is that of the process.
      test.addCleanup(process.kill)
      self._processes.append(process)
      self._pipes.append(pipe)

  def results(self) -> list[Any]:
    """What `work` returned, by process; fails the test if one did not."""
    results = {}
    # The others may wait for one that failed.
    while waiting := [pipe for pipe in self._pipes if pipe not in results]:
      ready = connection.wait(waiting, _TIMEOUT_SECONDS)
      self._test.assertNotEmpty(ready, "A process does not answer.")
      for pipe in ready:
        results[pipe] = self._receive(pipe)
    for process in self._processes:
      process.join(_TIMEOUT_SECONDS)
      self._test.assertEqual(process.exitcode, 0)
    return [results[pipe] for pipe in self._pipes]

  def _receive(self, pipe: connection.Connection) -> Any:
    try:
      result, error = pipe.recv()
    except EOFError:
      self._test.fail(f"Process {self._pipes.index(pipe)} died.")
    if error is not None:
      self._test.fail(error)
    return result


def _run(
    pipe: connection.Connection,
    work: Callable[[], Any],
    process: int,
    num_processes: int,
    num_devices: int,
    port: int,
) -> None:
  """Sends the result of `work`, or the error as text."""
  try:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices // num_processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", num_processes, process, initialization_timeout=60
    )
    result = work()
    jax.distributed.shutdown()
    pipe.send((result, None))
  except Exception as error:  # pylint: disable=broad-exception-caught
    pipe.send((None, "".join(traceback.format_exception(error))))
