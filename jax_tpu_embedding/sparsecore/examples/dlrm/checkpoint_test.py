# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.dlrm import checkpoint
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import features
from jax_tpu_embedding.sparsecore.examples.dlrm import training
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

_CONFIG = config_lib.Config(
    num_steps=20,
    batch_size=8,
    table_rows=10,
    embedding_dim=8,
    bottom_mlp=(4,),
    cross_layers=1,
    cross_rank=2,
    top_mlp=(4,),
)
_HISTORY = [{"samples": 0, "heldout_loss": 0.7}]
_LOG = "0123abcd"


def _batch(seed: int) -> features.Batch:
  rng = np.random.default_rng(seed)
  return features.Batch(
      labels=rng.integers(0, 2, 8).astype(np.float32),
      dense=rng.random((8, 13), np.float32),
      rows=rng.integers(0, 10, (8, 26), np.int32),
  )


def _arrays(state: training.State) -> Any:
  return jax.tree.map(
      lambda leaf: np.array(leaf[...]),
      (state.dense, state.optimizer_state, state.tables),
  )


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = pathlib.Path(self.create_tempdir().full_path)

  def _trainer(self, num_devices: int = 1) -> training.Trainer:
    jax.set_mesh(jax.sharding.Mesh(jax.devices()[:num_devices], ("data",)))
    return training.Trainer(
        dataclasses.replace(_CONFIG, num_devices=num_devices)
    )

  def _open(self, **settings) -> checkpoint.Checkpoints:
    return checkpoint.Checkpoints(
        self._directory,
        dataclasses.replace(
            _CONFIG, output_dir=str(self._directory), **settings
        ),
    )

  def _save(self, *steps: int) -> None:
    """Saves states that were not trained."""
    state = self._trainer().init()
    with self._open() as checkpoints:
      for state.step in steps:
        checkpoints.save(state, _HISTORY, _LOG)

  @parameterized.parameters(1, 4)
  def test_training_goes_on_as_if_it_had_not_stopped(self, num_devices):
    trainer = self._trainer(num_devices)
    straight = trainer.init()
    for i in range(3):
      trainer.train_step(straight, _batch(i))
    with self._open(num_devices=num_devices) as checkpoints:
      checkpoints.save(straight, _HISTORY, _LOG)
    with self._open(resume=True, num_devices=num_devices) as checkpoints:
      resumed, history = checkpoints.restore(trainer, _LOG)
    self.assertEqual((resumed.step, history), (3, _HISTORY))
    jax.tree.map(
        np.testing.assert_array_equal, _arrays(resumed), _arrays(straight)
    )
    for i in range(3, 5):
      self.assertEqual(
          float(trainer.train_step(straight, _batch(i))),
          float(trainer.train_step(resumed, _batch(i))),
      )
    jax.tree.map(
        np.testing.assert_array_equal, _arrays(resumed), _arrays(straight)
    )

  def test_keeps_the_newest_two(self):
    self._save(1, 2, 3)
    self.assertEqual(
        sorted(path.name for path in self._directory.iterdir()), ["2", "3"]
    )

  def test_saving_a_step_again_does_nothing(self):
    trainer = self._trainer()
    state = trainer.init()
    with self._open() as checkpoints:
      checkpoints.save(state, _HISTORY, _LOG)
      checkpoints.save(state, [], _LOG)
      self.assertEqual(checkpoints.restore(trainer, _LOG)[1], _HISTORY)

  def test_a_checkpoint_serves_other_intervals_and_a_longer_run(self):
    self._save(1)
    self._open(
        resume=True, num_steps=99, checkpoint_every=7, evaluate_every=3
    ).__exit__()
    self._open(resume=True, num_steps=0).__exit__()

  @parameterized.parameters(
      ({"resume": False}, "already has a checkpoint of step 2. Add --resume"),
      ({"batch_size": 9}, "of another run: batch_size is 9, was 8"),
      (
          {"seed": 1, "top_mlp": (4, 4)},
          r"another run: top_mlp is \[4, 4\], was \[4\]; seed is 1, was 0",
      ),
      ({"num_devices": 2}, "another run: num_devices is 2, was 1"),
      ({"num_steps": 1}, "already at step 2, beyond --num_steps=1"),
  )
  def test_refuses_a_checkpoint_with(self, settings, message):
    self._save(2)
    with self.assertRaisesRegex(config_lib.UsageError, message):
      self._open(**{"resume": True, **settings})

  def test_refuses_a_checkpoint_of_another_log(self):
    self._save(1)
    with self._open(resume=True) as checkpoints:
      with self.assertRaisesRegex(
          config_lib.UsageError, "log_sha256 is f00, was 0123abcd"
      ):
        checkpoints.restore(self._trainer(), "f00")

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
        config_lib.UsageError, "--output_dir: cannot make .*sub"
    ):
      self._open()


if __name__ == "__main__":
  absltest.main()
