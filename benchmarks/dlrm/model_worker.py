# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the workers of both packages have in common.

Only NumPy, since it runs in the environments of the packages.
"""

from __future__ import annotations

import abc
import os
import sys
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.dlrm import cases

# A whole step; lookup and update alone, with the gradients of the activations
# given; all but them, with the activations given.
PARTS = ("step", "tables", "dense")
_COMPARED_STEPS = 5


class Model(abc.ABC):
  """A package's model of a case; tables start from zero."""

  @abc.abstractmethod
  def step(self, batch_number: int) -> float:
    """Trains on a batch; returns its loss."""

  @abc.abstractmethod
  def tables(self, batch_number: int) -> None:
    """Looks a batch up and updates the tables; returns when it is done."""

  @abc.abstractmethod
  def dense(self, batch_number: int) -> None:
    """Trains the dense layers; returns when it is done."""


class ModelWorker(abc.ABC):
  """The commands."""

  @abc.abstractmethod
  def make(self, case: cases.Case) -> Model:
    """The model, ready to train."""

  @abc.abstractmethod
  def versions(self) -> dict[str, str]:
    """Package -> version."""

  def load(self, case: dict[str, Any]) -> dict[str, Any]:
    """Makes the model; returns the losses of its first steps."""
    self._model = None  # frees the one before
    self._model = self.make(cases.Case(**case))
    self._num_batches = len(cases.make_batches(cases.Case(**case)))
    self._batch_numbers = dict.fromkeys(PARTS, 0)
    return {"losses": [self._model.step(i) for i in range(_COMPARED_STEPS)]}

  def run(self, part: str, calls: int) -> dict[str, float]:
    """Times `calls` calls on the batches in turn; seconds per call."""
    do = getattr(self._model, part)

    def call():
      number = self._batch_numbers[part]
      self._batch_numbers[part] = (number + 1) % self._num_batches
      do(number)

    return turns.time_calls(call, calls)

  def describe(self) -> dict[str, str]:
    """Versions."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"Python": python, "NumPy": np.__version__, **self.versions()}


def num_threads() -> int:
  """As many as there are CPUs, for everybody."""
  return len(os.sched_getaffinity(0))
