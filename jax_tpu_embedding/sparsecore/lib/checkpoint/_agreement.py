# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Whether all processes of a job have written their part of a checkpoint.

orbax lets the first process commit once it is done itself. So each tells the
others, through the service of jax.distributed: no operation of devices, since
files are finished in the background, while steps run.
"""

from __future__ import annotations

import itertools

import jax
from jax_tpu_embedding.sparsecore.lib.checkpoint import _row_blocks
from jax_tpu_embedding.sparsecore.lib.core import jax_private

# As long as orbax waits. Processes that end are noticed by jax.distributed.
_TIMEOUT_SECONDS = 1200
_DONE = "done"
# All processes save the same checkpoints in the same order.
_numbers = itertools.count()


class Agreement:
  """Of one checkpoint; made in the order of saving."""

  def __init__(self):
    self._name = f"jax_tpu_embedding/checkpoint/{next(_numbers)}"

  def reach(self, error: Exception | None) -> None:
    """Waits until all have written their part.

    Args:
      error: why this process could not; None: it has.

    Raises:
      CheckpointError: another one could not.
    """
    own = jax.process_index()
    jax_private.tell_job(
        f"{self._name}/{own}", _DONE if error is None else str(error)
    )
    if error is not None:
      return
    for process in range(jax.process_count()):
      if process == own:
        continue
      try:
        told = jax_private.ask_job(f"{self._name}/{process}", _TIMEOUT_SECONDS)
      except TimeoutError:
        told = f"it did not finish within {_TIMEOUT_SECONDS} seconds."
      if told != _DONE:
        raise _row_blocks.CheckpointError(
            f"Process {process} could not write its part: {told}"
        )
