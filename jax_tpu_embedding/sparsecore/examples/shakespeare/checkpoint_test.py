# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import checkpoint
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import dataset
from jax_tpu_embedding.sparsecore.examples.shakespeare import trainers
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_CONFIG = config_lib.Config(
    num_steps=20,
    batch_size=8,
    vocabulary_size=50,
    embedding_dim=8,
    pair_table_rows=64,
    hidden_dim=4,
)
_TWO_DEVICES = dataclasses.replace(_CONFIG, num_devices=2)
_HISTORY = [{"step": 0, "heldout_loss": 4.5}]


def _arrays(state: training.State) -> Any:
  return jax.tree.map(np.array, state.arrays())


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._data = dataset.load(_CONFIG)
    self._trainer = trainers.trainer(_CONFIG, "linen")
    self._directory = pathlib.Path(self.create_tempdir().full_path)

  def _open(self, data=None, api="linen", **settings) -> checkpoint.Checkpoints:
    return checkpoint.Checkpoints(
        self._directory,
        dataclasses.replace(
            _CONFIG, output_dir=str(self._directory), **settings
        ),
        data or self._data,
        api,
    )

  def _save_at(self, step: int) -> None:
    state = self._trainer.init()
    state.step = step
    with self._open() as checkpoints:
      checkpoints.save(state, _HISTORY)

  @parameterized.parameters(
      ("linen", _CONFIG), *((api, _TWO_DEVICES) for api in trainers.TRAINERS)
  )
  def test_training_goes_on_as_if_it_had_not_stopped(self, api, config):
    trainer = trainers.trainer(config, api)
    straight, resumed = trainer.init(), trainer.init()
    for _ in range(3):
      trainer.train_step(straight)
    settings = dict(api=api, num_devices=config.num_devices)
    with self._open(**settings) as checkpoints:
      checkpoints.save(straight, _HISTORY)
    with self._open(resume=True, **settings) as checkpoints:
      self.assertEqual(checkpoints.restore(resumed), _HISTORY)
    self.assertEqual(resumed.step, 3)
    jax.tree.map(
        np.testing.assert_array_equal, _arrays(resumed), _arrays(straight)
    )
    for _ in range(2):
      self.assertEqual(
          float(trainer.train_step(straight)),
          float(trainer.train_step(resumed)),
      )
    jax.tree.map(
        np.testing.assert_array_equal, _arrays(resumed), _arrays(straight)
    )

  def test_keeps_the_newest_two(self):
    state = self._trainer.init()
    with self._open() as checkpoints:
      for state.step in (1, 2, 3):
        checkpoints.save(state, _HISTORY)
    self.assertEqual(
        sorted(path.name for path in self._directory.iterdir()), ["2", "3"]
    )

  def test_saving_a_step_again_does_nothing(self):
    state = self._trainer.init()
    with self._open() as checkpoints:
      checkpoints.save(state, _HISTORY)
      checkpoints.save(state, [])
    with self._open(resume=True) as checkpoints:
      self.assertEqual(checkpoints.restore(state), _HISTORY)

  def test_a_checkpoint_serves_other_intervals_and_a_longer_run(self):
    self._save_at(1)
    self._open(
        resume=True, num_steps=99, checkpoint_every=7, evaluate_every=3
    ).__exit__()

  @parameterized.parameters(
      ({"resume": False}, "already has a checkpoint of step 1. Add --resume"),
      ({"batch_size": 9}, "other settings: batch_size is 9, was 8"),
      (
          {"seed": 1, "dropout": 0.25},
          "other settings: dropout is 0.25, was 0.5; seed is 1, was 0",
      ),
      ({"num_devices": 2}, "other settings: num_devices is 2, was 1"),
      ({"api": "nnx"}, "other settings: api is nnx, was linen"),
  )
  def test_refuses_a_checkpoint_with(self, settings, message):
    self._save_at(1)
    with self.assertRaisesRegex(config_lib.UsageError, message):
      self._open(**{"resume": True, **settings})

  def test_refuses_a_checkpoint_of_another_text(self):
    self._save_at(1)
    other = dataclasses.replace(self._data, sha256="f00")
    with self.assertRaisesRegex(
        config_lib.UsageError, r"text is f00, was \w{64}\."
    ):
      self._open(other, resume=True)

  def test_refuses_a_checkpoint_beyond_the_last_step(self):
    self._save_at(2)
    with self.assertRaisesRegex(
        config_lib.UsageError, "already at step 2, beyond --num_steps=1"
    ):
      self._open(resume=True, num_steps=1)

  def test_refuses_to_resume_from_nothing(self):
    with self.assertRaisesRegex(config_lib.UsageError, "there is no checkpoin"):
      self._open(resume=True)

  def test_resuming_makes_no_directory(self):
    self._directory = self._directory / "misspelt"
    with self.assertRaisesRegex(
        config_lib.UsageError, "there is no directory .*misspelt"
    ):
      self._open(resume=True)
    self.assertFalse(self._directory.exists())

  def test_refuses_what_another_program_left(self):
    (self._directory / "5").mkdir()
    with self.assertRaisesRegex(
        config_lib.UsageError, "5 is not a checkpoint of this program"
    ):
      self._open(resume=True)

  def test_refuses_a_directory_that_cannot_be_made(self):
    self._directory = pathlib.Path(self.create_tempfile().full_path, "sub")
    with self.assertRaisesRegex(
        config_lib.UsageError, "--checkpoint_dir: cannot make .*sub"
    ):
      self._open()


if __name__ == "__main__":
  absltest.main()
