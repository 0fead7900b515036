# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Programs that start with tcmalloc in place of the C library's malloc.

    python -m jax_tpu_embedding.sparsecore.lib.core.tcmalloc train.py ARGUMENTS

XLA takes the memory of a step's activations and gradients from malloc, and
frees it in every step. glibc returns it to the system, which clears the same
pages again for the next step: half of its time, where they are large. tcmalloc
(of gperftools; Debian's package libtcmalloc-minimal4) keeps them. A process has
one malloc from its start to its end, so the program starts again with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import ctypes.util
import functools
import os
import sys
from typing import NoReturn

from jax_tpu_embedding.sparsecore.lib.core import standard_output

_NAMES = ("tcmalloc_minimal", "tcmalloc")
_PRELOAD = "LD_PRELOAD"
# By these, and by LD_PRELOAD, the user has chosen a malloc, or what it does.
_OF_GLIBC = ("MALLOC_", "GLIBC_TUNABLES")


def library() -> str | None:
  """The name of the shared library, or None if it is not installed.

  Asks the system's index of libraries, which takes some milliseconds.
  """
  if sys.platform != "linux":
    return None
  for name in _NAMES:
    if found := ctypes.util.find_library(name):
      return found
  return None


def restart() -> None:
  """Starts this program again with tcmalloc, if it is installed.

  To be called first of all: what was done before is done twice. Says so in a
  line on stderr. Does nothing if the user has chosen a malloc, or what it does:
  if LD_PRELOAD, GLIBC_TUNABLES or a variable like MALLOC_ARENA_MAX is set, be
  it to nothing.
  """
  if _user_has_chosen(os.environ) or (found := library()) is None:
    return
  print(
      f"Starting again with {found}, for faster steps; {_PRELOAD}= before the"
      " command does without.",
      file=sys.stderr,
      flush=True,
  )
  _execute([sys.executable, *sys.orig_argv[1:]], found)


def _user_has_chosen(environment: Mapping[str, str]) -> bool:
  return any(
      name == _PRELOAD or name.startswith(_OF_GLIBC) for name in environment
  )


def _execute(command: Sequence[str], preload: str) -> NoReturn:
  if sys.stdout is not None:  # It was closed before the start.
    sys.stdout.flush()
  os.execvpe(command[0], command, {**os.environ, _PRELOAD: preload})


def main(arguments: Sequence[str]) -> NoReturn:
  """Runs a Python program; ends with code 2 if that cannot be."""
  usage = f"Usage: python -m {__spec__.name} PROGRAM.py [ARGUMENT ...]"
  if not arguments:
    print(usage, file=sys.stderr)
    sys.exit(2)
  if arguments[0] in ("-h", "--help"):
    print(usage)
    sys.exit(0)
  found = library()
  if found is None:
    print(
        "tcmalloc is not installed. On Debian: apt-get install"
        " libtcmalloc-minimal4.",
        file=sys.stderr,
    )
    sys.exit(2)
  preload = os.environ.get(_PRELOAD)
  _execute(
      [sys.executable, *arguments], f"{found}:{preload}" if preload else found
  )


if __name__ == "__main__":
  standard_output.run(functools.partial(main, sys.argv[1:]))
