# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a program prints, to a reader that may go, as in `program | head -1`."""

from __future__ import annotations

from collections.abc import Callable
import os
import sys
from typing import NoReturn

# Of a command that SIGPIPE ended, as shells say it.
_NOBODY_READS = 128 + 13


def run(main: Callable[[], int]) -> NoReturn:
  """Ends the process with the exit status that `main` returns.

  Quietly, with that of other commands, if nobody reads what it prints any more.
  """
  try:
    try:
      status = main()
    finally:
      if sys.stdout is not None:  # It was closed before the start.
        sys.stdout.flush()
  except BrokenPipeError:
    discard()
    status = _NOBODY_READS
  sys.exit(status)


def discard() -> None:
  """Drops what is still to be printed, after an error in printing.

  Else the interpreter tries once more as it ends, and says that it cannot.
  """
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
