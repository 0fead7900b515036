# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Publishes versions until somebody kills it, without a device.

python publish_forever.py DIRECTORY

Each line of input is a step to begin with. The versions are published by a
forked process, since most of the time of a process is that of importing. It
prints its number, and each step as soon as that is published; this one prints
"killed" when it is, or "ended" if something else ended it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any
from unittest import mock

from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.checkpoint.testing import any_tables
from jax_tpu_embedding.sparsecore.lib.export import _encodings
from jax_tpu_embedding.sparsecore.lib.export import _sources
from jax_tpu_embedding.sparsecore.lib.export import export
import numpy as np

_TOPOLOGY = any_tables.Topology(1, 1, "alone")


def _values_of_step(step: int) -> dict[str, np.ndarray]:
  values = {}
  for name, by_slot in any_tables.values().items():
    rows = by_slot[None]
    rows[np.arange(len(rows)) % 7 < step % 7, 0] += 1
    values[name] = rows
  return values


def encoded_values_of_step(step: int) -> dict[str, np.ndarray]:
  int8 = _encodings.ENCODINGS["int8"]
  return {
      name: _encodings.encode(int8, rows).rows
      for name, rows in _values_of_step(step).items()
  }


def source_of_arrays(
    arrays: dict[str, np.ndarray], specs: Any, *args: Any
) -> _sources.Source:
  """_sources.of, for arrays of NumPy in the place of variables."""
  return _sources.Source(
      tables=_sources.of_specs(specs, *args[:2]),
      rows_of={
          name: _row_blocks.ArrayRows(name, rows)
          for name, rows in arrays.items()
      },
  )


def _publish(directory: str, first_step: int) -> None:
  specs = any_tables.feature_specs(_TOPOLOGY)
  publisher = export.Publisher(directory, specs, full_every=5)
  with mock.patch.object(_sources, "of", source_of_arrays):
    for step in itertools.count(first_step):
      publisher.publish(_values_of_step(step), step)
      print(step, flush=True)


def main() -> None:
  for line in sys.stdin:
    if os.fork() == 0:
      print(os.getpid(), flush=True)
      _publish(sys.argv[1], int(line))
    _, status = os.wait()
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print("killed" if is_killed else "ended", flush=True)


if __name__ == "__main__":
  main()
