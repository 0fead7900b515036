# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs a worker: what worker_process.py starts, on any interpreter.

  python serve_worker.py MODULE

Reads a command per line from standard input and answers with a line, both JSON.
A command is a method of the module's class `Worker`, with its arguments.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import traceback


def main() -> None:
  # Whatever a library prints must not mix with the answers.
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  # Last: another environment's packages come before those of this repository.
  sys.path.append(str(pathlib.Path(__file__).parents[1]))
  worker = importlib.import_module(sys.argv[1]).Worker()
  for line in sys.stdin:
    command = json.loads(line)
    try:
      answer = getattr(worker, command.pop("command"))(**command)
    except Exception as error:  # pylint: disable=broad-except
      traceback.print_exc()
      answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
  main()
