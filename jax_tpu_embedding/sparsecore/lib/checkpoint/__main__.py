# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Looks at checkpoints of tables.

python -m jax_tpu_embedding.sparsecore.lib.checkpoint describe PATH
python -m jax_tpu_embedding.sparsecore.lib.checkpoint verify PATH
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import sys

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import checkpoint
from jax_tpu_embedding.sparsecore.lib.core import standard_output

_COMMANDS = {
    "describe": (checkpoint.describe, "says what a checkpoint has"),
    "verify": (checkpoint.verify, "reads every file against its checksum"),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; returns the exit status."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_tpu_embedding.sparsecore.lib.checkpoint",
      description="Looks at checkpoints of tables.",
  )
  commands = parser.add_subparsers(dest="command", required=True)
  for name, (_, text) in _COMMANDS.items():
    commands.add_parser(name, help=text).add_argument(
        "path", help="of a checkpoint: the directory of one step"
    )
  arguments = parser.parse_args(argv)
  # A job on this machine may have the accelerators.
  jax.config.update("jax_platforms", "cpu")
  try:
    print(_COMMANDS[arguments.command][0](arguments.path))
  except checkpoint.CheckpointError as error:
    print(error, file=sys.stderr)
    return 1
  if arguments.command == "verify":
    print("All files are as they were written.")
  return 0


if __name__ == "__main__":
  standard_output.run(main)
