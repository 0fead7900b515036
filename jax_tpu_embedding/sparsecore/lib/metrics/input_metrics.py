# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Numbers about the input, of many batches at a time.

      Every(100, sink)    as on_batch= of an input pipeline

Names have the form <prefix>/<kind>/<stack or feature>/<number>, and those of
the pipeline <prefix>/input/<number>. NUMBERS has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import threading
from typing import Any

from jax_tpu_embedding.sparsecore.lib.nn import embedding

# <kind>/<number> -> what it is. What is counted is added up over batches, of
# other numbers of batches the largest is taken, and of times the mean.
NUMBERS = {
    "stack/max_ids_per_partition": (
        "Most entries that a SparseCore sent to another."
    ),
    "stack/max_unique_ids_per_partition": (
        "Most distinct rows that a SparseCore asked another for."
    ),
    "stack/required_buffer_size_per_sc": "Most cells that a SparseCore needed.",
    "stack/minibatch_alignment_per_sc": (
        "Most cells that several passes took on top of those."
    ),
    "stack/id_drop_counters": "Ids left out, by policies, limits and full buffers.",
    "stack/entries": "Entries of the buffers: equal ids of a sample are one.",
    "stack/distinct_rows": "Rows that SparseCores asked each other for.",
    "stack/dropped_by_limit": "Ids left out for limits and full buffers.",
    "stack/num_minibatches": "Most passes that a batch took.",
    "feature/num_ids": "Ids, before any was left out.",
    "feature/dropped_by_policy": "Ids left out by the feature's policies.",
    "feature/clamped": "Ids replaced by the nearest id of the table.",
    "feature/wrapped": "Ids replaced by their remainder.",
    "feature/bad_weights": "Weights that were not finite.",
    "input/source_ms": "Mean time that a batch took to read.",
    "input/preprocess_ms": "Mean time that a batch took to preprocess.",
    "input/agree_ms": (
        "Mean time to settle limits: waiting for other processes, and"
        " preprocessing again what did not fit."
    ),
    "input/send_ms": "Mean time that a batch took to send to devices.",
    "input/starved_ms": "Mean time that the program waited for a batch.",
}
_COUNTED = frozenset(
    {
        "id_drop_counters",
        "entries",
        "distinct_rows",
        "dropped_by_limit",
        "num_ids",
        "dropped_by_policy",
        "clamped",
        "wrapped",
        "bad_weights",
    }
)


def is_counted(number: str) -> bool:
  """Whether a number is added up over batches."""
  return number in _COUNTED


class Every:
  """Gives a sink the numbers of so many batches, then those of the next.

  Threads may share it: the sink is called by one at a time.
  """

  def __init__(
      self,
      num_batches: int,
      sink: Callable[[int, Mapping[str, float]], None],
      prefix: str = "embedding/",
  ):
    """Starts without batches.

    Args:
      num_batches: that the sink is called after.
      sink: called with the number of the last batch and the numbers by name, as
        TensorBoard's writers are: `lambda step, scalars: ...`.
      prefix: of all names.

    Raises:
      ValueError: if num_batches is not a positive integer.
    """
    if not isinstance(num_batches, int) or num_batches <= 0:
      raise ValueError(
          f"num_batches must be a positive integer, got {num_batches!r}."
      )
    self._num_batches, self._sink, self._prefix = num_batches, sink, prefix
    self._values: dict[str, float] = {}
    self._num_seen = 0
    self._lock = threading.Lock()

  def __call__(
      self,
      number: int,
      stats: embedding.SparseDenseMatmulInputStats,
      timings: Any,
  ) -> None:
    """Adds a batch. The arguments are those of on_batch."""
    with self._lock:
      self._add(number, stats, timings)

  def _add(self, number, stats, timings) -> None:
    for name, value in stats.to_scalars(self._prefix).items():
      old = self._values.get(name, 0.0)
      counted = is_counted(name.rsplit("/", 1)[1])
      self._values[name] = old + value if counted else max(old, value)
    for stage, seconds in dataclasses.asdict(timings).items():
      name = f"{self._prefix}input/{stage}_ms"
      mean = 1e3 * seconds / self._num_batches
      self._values[name] = self._values.get(name, 0.0) + mean
    self._num_seen += 1
    if self._num_seen == self._num_batches:
      values, self._values, self._num_seen = self._values, {}, 0
      self._sink(number, values)
