# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A worker in a process of its own.

So that packages that do not go together can be measured in turns, and
`time.process_time` counts the threads of one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from jax_tpu_embedding.sparsecore.lib.core import tcmalloc

# For workers of other packages, which shall have their best settings.
ENVIRONMENT_OF_PEERS = {
    # Threads of OpenMP that wait must not spin: PyTorch's CPU time would be a
    # third more, and on a busy machine several times as much.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Tables in huge pages, which ours get by themselves: PyTorch's lookups of
    # uniform ids take 0.6 of the time. Of glibc 2.35 and later.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def allocators() -> dict[str, str]:
  """The name of a malloc -> what LD_PRELOAD loads for it; those that are there."""
  found = tcmalloc.library()
  return {"malloc of the C library": ""} | (
      {"tcmalloc": found} if found else {}
  )


def python_path_with(root: pathlib.Path) -> list[str]:
  """The path of modules with another version of the repository in place."""
  # Both would be there otherwise: most folders are namespace packages.
  others = [
      folder
      for folder in sys.path
      if not pathlib.Path(folder, "jax_tpu_embedding").is_dir()
  ]
  return [str(root), *others]


class WorkerError(Exception):
  """The package could not do what it was asked; the text is its error."""


class WorkerProcess:
  """Sends commands to a worker. Use it in a `with` statement."""

  def __init__(
      self,
      module: str,
      python: str | None = None,
      environment: Mapping[str, str] | None = None,
      root: pathlib.Path | None = None,
  ):
    """Starts the process.

    Args:
      module: the module with the class `Worker`.
      python: the interpreter, by default this one with its packages.
      environment: variables to set for it.
      root: the folder of another version of the repository, whose worker and
        package these are; its packages are those of this interpreter.
    """
    self.module = module
    serve = str(
        root / "benchmarks" / "serve_worker.py"
        if root
        else pathlib.Path(__file__).with_name("serve_worker.py")
    )
    variables = dict(os.environ, JAX_PLATFORMS="cpu")
    if python is None:
      # Not from the folder of the program (-P).
      command = [sys.executable, "-P", serve, module]
      variables["PYTHONPATH"] = os.pathsep.join(
          python_path_with(root) if root else sys.path
      )
    else:
      command = [python, "-I", serve, module]  # with its own packages first
    # What libraries log would be measured too if somebody had to read it.
    self._errors = subprocess.DEVNULL
    self._process = subprocess.Popen(
        command,
        env=variables | dict(environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=self._errors,
        text=True,
    )

  def __enter__(self) -> WorkerProcess:
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(BrokenPipeError):  # It may have died.
      self._process.stdin.close()
    self._process.wait()

  def command(self, name: str, /, **arguments: Any) -> dict[str, Any]:
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

  def timed(self, **arguments: Any) -> Callable[[int], dict[str, float]]:
    """The command `run`, as turns.take wants it: a function of `calls`."""
    return lambda calls: self.command("run", calls=calls, **arguments)
