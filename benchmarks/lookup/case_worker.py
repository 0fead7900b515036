# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the workers of all packages have in common: commands and the check.

Only NumPy, since it runs in the environments of the packages.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
import os
import sys
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.lookup import cases
from benchmarks.lookup import expected


class Contender(abc.ABC):
  """One way to do the steps of a case, with a table of its own."""

  # Adagrad with one accumulator per row.
  is_row_wise = False
  # What its results are compared with, if not with those of the step.
  computed_step: str | None = None

  @abc.abstractmethod
  def step(self, batch_number: int) -> None:
    """Does the whole step; returns when it is done."""

  @abc.abstractmethod
  def activations(self) -> np.ndarray:
    """f32[batch_size, dim] of the last step."""

  def let_go(self) -> None:
    """Frees the activations of the last step, as a program does before the next.

    The next ones are in the same memory then, which caches have, as the limit's
    are.
    """
    self._activations = None

  @abc.abstractmethod
  def table(self) -> np.ndarray:
    """f32[num_rows, dim] after the last step."""


class CaseWorker(abc.ABC):
  """The commands."""

  @abc.abstractmethod
  def contenders(self, case: cases.Case, step: str) -> dict[str, Contender]:
    """What this worker measures, by name."""

  @abc.abstractmethod
  def versions(self) -> dict[str, str]:
    """Package -> version."""

  def load(self, case: dict[str, Any], step: str) -> dict[str, Any]:
    """Makes the contenders and compares the first step of each.

    Args:
      case: the fields of a cases.Case.
      step: one of cases.STEPS.

    Returns:
      "names": of those that did what they should, "problems": name -> text.
    """
    self._contenders: Mapping[str, Contender] = {}  # frees those before
    self._case = cases.Case(**case)
    self._contenders = self.contenders(self._case, step)
    self._batch_numbers = dict.fromkeys(self._contenders, 0)
    problems = {}
    for name, contender in self._contenders.items():
      contender.step(0)
      problem = expected.first_difference(
          self._case,
          contender.computed_step or step,
          contender.activations(),
          contender.table(),
          is_row_wise=contender.is_row_wise,
      )
      if problem:
        problems[name] = problem
    return {
        "names": [name for name in self._contenders if name not in problems],
        "problems": problems,
    }

  def run(self, contender: str, calls: int) -> dict[str, float]:
    """Times `calls` steps on the batches in turn; seconds per step."""
    doer = self._contenders[contender]

    def step():
      number = self._batch_numbers[contender]
      self._batch_numbers[contender] = (number + 1) % self._case.num_batches
      doer.let_go()
      doer.step(number)

    return turns.time_calls(step, calls)

  def describe(self) -> dict[str, str]:
    """Versions."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"Python": python, "NumPy": np.__version__, **self.versions()}


def num_threads() -> int:
  """As many as there are CPUs, for everybody."""
  return len(os.sched_getaffinity(0))
