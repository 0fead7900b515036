# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""A program whose output nobody reads, as in `program | true`."""

from __future__ import annotations

import os
import subprocess
import sys


def run(module: str, *arguments: str | os.PathLike[str]) -> tuple[int, str]:
  """Runs a module as a program; its exit code, and what it says of that."""
  process = subprocess.Popen(
      [sys.executable, "-m", module, *arguments],
      env={
          **os.environ,
          "PYTHONPATH": os.pathsep.join(sys.path),
          # Else argparse meets the closed pipe, and says nothing.
          "PYTHONUNBUFFERED": "",
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )
  process.stdout.close()
  with process.stderr:
    errors = process.stderr.read()
  return process.wait(), errors
