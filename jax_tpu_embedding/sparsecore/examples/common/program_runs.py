# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""For tests: runs of a whole program, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import io
import os
import pathlib
import subprocess
import sys
from typing import Any

from absl.testing import flagsaver
from jax_tpu_embedding.sparsecore.examples.common import command_line
import orbax.checkpoint as ocp


def run(
    main: Callable[[list[str]], None], program: str, *arguments: str
) -> tuple[int, str, str]:
  """Runs a program in this process: exit code, stdout, stderr."""
  stdout, stderr = io.StringIO(), io.StringIO()
  code = 0
  with (
      flagsaver.flagsaver(),
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(stderr),
  ):
    try:
      main(command_line.parse_flags([program, *arguments]))
    except SystemExit as error:
      code = error.code
  return code, stdout.getvalue(), stderr.getvalue()


def start(file: str, *arguments: str) -> subprocess.Popen[str]:
  """Starts a program in a process of its own."""
  return subprocess.Popen(
      [sys.executable, file, *arguments],
      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )


def saved_arrays(output_dir: str, step: int) -> Any:
  """All arrays of a checkpoint, read without the program's help."""
  path = pathlib.Path(output_dir, "checkpoints", str(step), "state")
  return ocp.StandardCheckpointer().restore(path)
