# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A process in the place of a host, for tests: it does what it is told."""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import multiprocessing
from multiprocessing import connection
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core.all_reduce import minibatching_node

# A fork would copy the threads' locks of the test's own nodes.
_SPAWN = multiprocessing.get_context("spawn")

# Long enough to never end a test that passes.
_TIMEOUTS = minibatching_node.Timeouts(
    call_seconds=60, reduction_seconds=60, reconnect_seconds=0.5
)


class HostProcess:
  """Host `task_id` of those that listen at `ports`."""

  def __init__(self, task_id: int, ports: Sequence[int]):
    self._pipe, of_process = _SPAWN.Pipe()
    self._process = _SPAWN.Process(
        target=_run, args=(of_process, task_id, tuple(ports)), daemon=True
    )
    self._process.start()

  def wait_until_up(self) -> None:
    assert self._pipe.recv() == "up"

  def start(self, method: str, *args: Any, **kwargs: Any) -> None:
    """Calls a method of the host's AllReduceInterface, or the converter.

    Args:
      method: "any_of", "bitwise_or", or "convert_step" of converter_requests.
      *args: its arguments.
      **kwargs: its keyword arguments.
    """
    self._pipe.send((method, args, kwargs))

  def result(self) -> Any:
    """What the call returned, or the exception that it raised."""
    return self._pipe.recv()

  def kill(self) -> None:
    """With SIGKILL: it has no chance to say goodbye."""
    self._process.kill()
    self._process.join()

  def stop(self) -> int:
    """Lets the process end by itself; returns its exit code."""
    self._pipe.send(None)
    self._process.join()
    return self._process.exitcode


def _run(
    pipe: connection.Connection, task_id: int, ports: tuple[int, ...]
) -> None:
  peers = [
      f"localhost:{port}" for port in ports[:task_id] + ports[task_id + 1 :]
  ]
  all_reduce = minibatching_node.get_all_reduce_interface(
      peers, ports[task_id], task_id, len(ports), timeouts=_TIMEOUTS
  )

  def convert_step(*args, **kwargs):
    # Here, because it imports JAX: seconds that other calls can do without.
    requests = importlib.import_module(
        "jax_tpu_embedding.sparsecore.lib.core.testing.converter_requests"
    )
    return requests.convert_step(
        *args,
        enable_minibatching=True,
        all_reduce_interface=all_reduce,
        **kwargs,
    )

  methods = {
      "any_of": all_reduce.any_of,
      "bitwise_or": all_reduce.bitwise_or,
      "convert_step": convert_step,
  }
  pipe.send("up")
  # Returns without closing the node: a process may end like that.
  for method, args, kwargs in iter(pipe.recv, None):
    try:
      pipe.send(methods[method](*args, **kwargs))
    except RuntimeError as error:
      pipe.send(error)
