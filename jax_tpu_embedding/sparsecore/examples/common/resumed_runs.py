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
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import table_stacking
import numpy as np


def arrays(state: train_state.State) -> Any:
  """Copies of all arrays of a state, which a step may change."""
  tables = jax.tree.map(lambda leaf: leaf[...], state.table_variables())
  return jax.tree.map(np.array, state.arrays() | {"tables": tables})


def tables(state: train_state.State) -> dict[str, Any]:
  """Tables and slots as declared, by name: on any devices, in any stacks."""
  variables = {
      name: embedding.EmbeddingVariables(
          *jax.tree.map(lambda leaf: np.array(leaf[...]), (v.table, v.slot))
      )
      for name, v in state.table_variables().items()
  }
  specs = embedding.get_table_specs(state.feature_specs)
  setting = next(iter(specs.values())).setting_in_stack
  return table_stacking.unshard_and_unstack_tables(
      specs, variables, setting.num_shards
  )


def saved(
    test: absltest.TestCase, state: train_state.State
) -> tuple[pathlib.Path, dict[str, Any]]:
  """The directory where a state was saved, and what it was, tables by name."""
  directory = pathlib.Path(test.create_tempdir().full_path)
  _save(state, directory)
  return directory, _by_name(state)


def assert_restored(
    test: absltest.TestCase,
    of_saved: tuple[pathlib.Path, dict[str, Any]],
    state: train_state.State,
) -> None:
  """Restores what saved() returned, of any program and devices, bit for bit."""
  directory, expected = of_saved
  _restore(state, directory)
  jax.tree.map(np.testing.assert_array_equal, expected, _by_name(state))


def _by_name(state: train_state.State) -> dict[str, Any]:
  by_name = state.arrays() | {"tables": tables(state), "step": state.step}
  return jax.tree.map(np.array, by_name)


def _open(directory: pathlib.Path, resume: bool) -> checkpoint.Checkpoints:
  return checkpoint.Checkpoints(
      directory, flag="output_dir", resume=resume, num_steps=None
  )


def _save(state: train_state.State, directory: pathlib.Path) -> None:
  with _open(directory, resume=False) as checkpoints:
    checkpoints.save(state, [])


def _restore(state: train_state.State, directory: pathlib.Path) -> None:
  with _open(directory, resume=True) as checkpoints:
    checkpoints.restore(state)


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
  directory = pathlib.Path(test.create_tempdir().full_path)
  _save(straight, directory)
  _restore(resumed, directory)
  test.assertEqual(resumed.step, 3)
  _assert_equal(resumed, straight)
  for _ in range(2):
    test.assertEqual(float(train_step(straight)), float(train_step(resumed)))
  _assert_equal(resumed, straight)


def _assert_equal(one: train_state.State, other: train_state.State) -> None:
  jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(other))
