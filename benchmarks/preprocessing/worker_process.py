# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A process that runs worker.py on some interpreter."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any


class WorkerError(Exception):
  """The package could not do what it was asked; the text is its error."""


class WorkerProcess:
  """Sends commands to a worker. Use it in a `with` statement."""

  def __init__(self, python: str | None = None):
    """`python`: the interpreter, by default this one with its packages."""
    worker = str(pathlib.Path(__file__).with_name("worker.py"))
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    if python is None:
      # Not from this folder (-P): its modules are not the worker's.
      command = [sys.executable, "-P", worker]
      environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    else:
      command = [python, "-I", worker]  # with its own packages only
    # What libraries log would be measured too if somebody had to read it.
    self._errors = subprocess.DEVNULL
    self._process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._errors,
        text=True,
    )

  def __enter__(self) -> WorkerProcess:
    return self

  def __exit__(self, *_) -> None:
    self._process.stdin.close()
    self._process.wait()

  def command(self, name: str, **arguments: Any) -> dict[str, Any]:
    """What the worker answers.

    Raises:
      WorkerError: if it raised, or died.
    """
    try:
      request = json.dumps({"command": name, **arguments})
      print(request, file=self._process.stdin, flush=True)
      line = self._process.stdout.readline()
    except BrokenPipeError:
      line = ""
    if not line:
      raise WorkerError(
          f"the process ended with code {self._process.wait()} in {name!r}."
      )
    answer = json.loads(line)
    if "error" in answer:
      raise WorkerError(answer["error"])
    return answer
