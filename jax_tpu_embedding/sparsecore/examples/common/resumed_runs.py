# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""For tests: training that goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
from typing import Any

from absl.testing import absltest
import jax
from jax_tpu_embedding.sparsecore.examples.common import checkpoint
from jax_tpu_embedding.sparsecore.examples.common import train_state
import numpy as np


def arrays(state: train_state.State) -> Any:
  """Copies of all arrays of a state, which a step may change."""
  return jax.tree.map(np.array, state.arrays())


def assert_goes_on_as_if_it_had_not_stopped(
    test: absltest.TestCase,
    init: Callable[[], train_state.State],
    train_step: Callable[[train_state.State], jax.Array],
) -> None:
  """Three steps, a checkpoint, and two more steps with and without it.

  Args:
    test: the test that this is a part of.
    init: makes a state before the first step.
    train_step: takes a step, and returns its loss.
  """
  straight, resumed = init(), init()
  for _ in range(3):
    train_step(straight)

  def opened(resume):
    return checkpoint.Checkpoints(
        directory, flag="output_dir", resume=resume, num_steps=None
    )

  directory = pathlib.Path(test.create_tempdir().full_path)
  with opened(resume=False) as checkpoints:
    checkpoints.save(straight, [])
  with opened(resume=True) as checkpoints:
    checkpoints.restore(resumed)
  test.assertEqual(resumed.step, 3)
  _assert_equal(resumed, straight)
  for _ in range(2):
    test.assertEqual(float(train_step(straight)), float(train_step(resumed)))
  _assert_equal(resumed, straight)


def _assert_equal(one: train_state.State, other: train_state.State) -> None:
  jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(other))
