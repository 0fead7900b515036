# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import itertools
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
from unittest import mock

from absl import logging
from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_tpu_embedding.sparsecore.examples.common import checkpoint
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import resumed_runs
from jax_tpu_embedding.sparsecore.examples.common import train_state
from jax_tpu_embedding.sparsecore.lib.nn import embedding
from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)

_SETTINGS = {"batch_size": 8, "widths": [4], "seed": 0}
_HISTORY = [{"samples": 0, "heldout_loss": 0.7}]


def _state(
    seed: int = 0, step: int = 0, num_devices: int = 2
) -> train_state.TreeState:
  """With a table in an array and one in a jax.Ref."""
  features = []
  for name in ("of_references", "of_arrays"):
    table = embedding_spec.TableSpec(
        name=name,
        vocabulary_size=30,
        embedding_dim=8,
        optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
        initializer=jax.nn.initializers.uniform(),
    )
    features.append(
        embedding_spec.FeatureSpec(
            name=name,
            table_spec=table,
            input_shape=(8, 1),
            output_shape=(8, 8),
        )
    )
  embedding.prepare_feature_specs_for_training(features, num_devices, 1)
  mesh = jax.sharding.Mesh(jax.devices()[:num_devices], ("device",))
  tables = embedding.init_embedding_variables(
      jax.random.key(seed),
      embedding.get_table_specs(features),
      jax.sharding.NamedSharding(
          mesh, jax.sharding.PartitionSpec("device", None)
      ),
      1,
      bypass_mesh_check=True,
  )
  tables["of_references"] = jax.tree.map(jax.new_ref, tables["of_references"])
  rng = np.random.default_rng(seed)
  return train_state.TreeState(
      step=step,
      feature_specs=features,
      dense={"kernel": jnp.asarray(rng.random((2, 3), np.float32))},
      optimizer_state=(jnp.int32(seed), {"kernel": jnp.ones((2, 3))}),
      tables=tables,
  )


_arrays = resumed_runs.arrays


def _resume(directory):
  checkpoints = checkpoint.Checkpoints(
      directory, flag="out", resume=True, num_steps=None
  )
  checkpoints.require(_SETTINGS)
  return checkpoints


def _save_with_little_room(directory, pipe):
  """As on a full disk: from here on files may have 64 bytes."""
  state = _state(step=2)
  with _resume(directory) as checkpoints:
    # Python ignores the signal that goes with it, so writing is an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    try:
      checkpoints.save(state, _HISTORY)
    except command_line.UsageError as error:
      pipe.send(str(error))


def _save_step_after_step(directory, pipe):
  """For ever: the process is to be killed."""
  with _resume(directory) as checkpoints:
    for step in itertools.count(2):
      checkpoints.save(_state(seed=step, step=step), _HISTORY)
      if step == 2:
        pipe.send(None)


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = pathlib.Path(self.create_tempdir().full_path)

  def _open(
      self, resume: bool = False, num_steps: int | None = 20, **settings
  ) -> checkpoint.Checkpoints:
    checkpoints = checkpoint.Checkpoints(
        self._directory, flag="out", resume=resume, num_steps=num_steps
    )
    checkpoints.require(_SETTINGS | settings)
    return checkpoints

  def _save(self, *steps: int) -> None:
    with self._open() as checkpoints:
      for step in steps:
        checkpoints.save(_state(step=step), _HISTORY)

  def test_a_state_is_restored_bit_for_bit_and_in_its_place(self):
    saved, restored = _state(seed=1, step=3), _state(seed=2)
    reference = restored.tables["of_references"].table
    before = jax.tree.leaves((restored.arrays(), restored.tables))
    with self._open() as checkpoints:
      checkpoints.save(saved, _HISTORY)
    with self._open(resume=True) as checkpoints:
      self.assertEqual(checkpoints.restore(restored), _HISTORY)
    self.assertEqual(restored.step, 3)
    jax.tree.map(
        np.testing.assert_array_equal, _arrays(restored), _arrays(saved)
    )
    self.assertIs(restored.tables["of_references"].table, reference)
    after = jax.tree.leaves((restored.arrays(), restored.tables))
    for old, new in zip(before, after, strict=True):
      self.assertEqual((old.sharding, old.dtype), (new.sharding, new.dtype))

  def test_a_state_is_restored_on_another_number_of_devices(self):
    saved, restored = _state(seed=1, step=3), _state(seed=2, num_devices=1)
    with self._open() as checkpoints:
      checkpoints.save(saved, _HISTORY)
    with self._open(resume=True) as checkpoints:
      checkpoints.restore(restored)
    self.assertEqual(saved.arrays().keys(), restored.arrays().keys())
    for name, table in resumed_runs.tables(saved).items():
      jax.tree.map(
          np.testing.assert_array_equal,
          table,
          resumed_runs.tables(restored)[name],
      )

  def test_what_an_earlier_version_saved_is_refused(self):
    self._save(3)
    shutil.rmtree(self._directory / "3" / "tables")
    with self.assertRaisesRegex(
        command_line.UsageError, "3 is of an earlier version of this program"
    ):
      self._open(resume=True)

  def test_keeps_the_newest_two(self):
    self._save(1, 2, 3)
    self.assertEqual(
        sorted(path.name for path in self._directory.iterdir()), ["2", "3"]
    )

  def test_saving_a_step_again_does_nothing(self):
    with self._open() as checkpoints:
      checkpoints.save(_state(), _HISTORY)
      checkpoints.save(_state(), [])
    with self._open(resume=True) as checkpoints:
      self.assertEqual(checkpoints.restore(_state()), _HISTORY)

  @parameterized.parameters(2, 99, None)
  def test_a_checkpoint_serves_a_run_to_its_step_and_longer(self, num_steps):
    self._save(2)
    with self._open(resume=True, num_steps=num_steps):
      pass

  @parameterized.parameters(
      ({"resume": False}, "already has a checkpoint of step 2. Add --resume"),
      ({"batch_size": 9}, "other settings: batch_size is 9, was 8"),
      (
          {"seed": 1, "widths": [4, 4]},
          r"other settings: widths is \[4, 4\], was \[4\]; seed is 1, was 0",
      ),
      ({"unheard_of": 1}, "other settings: unheard_of is 1, was None"),
      ({"num_steps": 1}, "already at step 2, beyond --num_steps=1"),
  )
  def test_refuses_a_checkpoint_with(self, settings, message):
    self._save(2)
    with self.assertRaisesRegex(command_line.UsageError, message):
      self._open(**{"resume": True, **settings})

  def test_settings_that_are_known_later_are_saved_and_compared_too(self):
    with self._open() as checkpoints:
      checkpoints.require({"log": "0123abcd"})
      checkpoints.save(_state(step=1), _HISTORY)
    with self._open(resume=True) as checkpoints:
      checkpoints.require({"log": "0123abcd"})
      with self.assertRaisesRegex(
          command_line.UsageError, "other settings: log is f00, was 0123abcd"
      ):
        checkpoints.require({"log": "f00"})

  def test_refuses_to_resume_from_nothing(self):
    with self.assertRaisesRegex(
        command_line.UsageError, "there is no checkpoint"
    ):
      self._open(resume=True)

  def test_resuming_makes_no_directory(self):
    self._directory = self._directory / "misspelt"
    with self.assertRaisesRegex(
        command_line.UsageError, "there is no directory .*misspelt"
    ):
      self._open(resume=True)
    self.assertFalse(self._directory.exists())

  def test_refuses_what_another_program_left(self):
    (self._directory / "5").mkdir()
    with self.assertRaisesRegex(
        command_line.UsageError, "5 is not a checkpoint of this program"
    ):
      self._open(resume=True)

  def _restored(self) -> train_state.TreeState:
    state = _state(seed=2)
    with self._open(resume=True) as checkpoints:
      checkpoints.restore(state)
    return state

  def test_damaged_files_are_a_sentence_or_harmless(self):
    saved = _arrays(_state(step=3))
    self._save(3)
    files = [p for p in sorted(self._directory.rglob("*")) if p.is_file()]
    self.assertNotEmpty(files)
    for path in files:
      content = path.read_bytes()
      middle = len(content) // 2
      flipped = bytearray(content)
      if flipped:
        flipped[middle] ^= 1
      for damaged in (b"", b"[]", content[:middle], bytes(flipped)):
        path.write_bytes(damaged)
        with self.subTest(f"{path}, {len(damaged)} of {len(content)} bytes"):
          try:
            restored = self._restored()
          except command_line.UsageError as error:
            self.assertRegex(str(error), "^--.*(is|are) (damaged|not a)")
          else:
            jax.tree.map(
                np.testing.assert_array_equal, _arrays(restored), saved
            )
      path.write_bytes(content)

  def test_array_that_is_not_the_saved_one_is_named(self):
    real = checkpoint._checksums

    def changed(arrays):
      return real(arrays) | {"dense.kernel": 1}

    with mock.patch.object(checkpoint, "_checksums", changed):
      self._save(3)
    state = _state(seed=2)
    with self._open(resume=True) as checkpoints:
      with self.assertRaisesRegex(
          command_line.UsageError,
          "3 is damaged: dense.kernel is not what was saved",
      ):
        checkpoints.restore(state)
    self.assertEqual(state.step, 0)

  def test_a_disk_that_takes_no_more_is_a_sentence(self):
    self._save(1)
    process, pipe = self._start(_save_with_little_room)
    message = pipe.recv() if pipe.poll(120) else "nothing"
    process.join(60)
    self.assertRegex(
        message, "^Cannot write the checkpoint of step 2 to .*: .*too large.*$"
    )
    self.assertEqual(self._restored().step, 1)

  def test_what_is_raised_is_not_logged_by_threads_of_orbax_as_well(self):
    def save(*_, **__):
      logging.error("A traceback.")
      sys.unraisablehook("Another one.")
      raise OSError("No space left on device")

    self.addCleanup(logging.set_verbosity, logging.get_verbosity())
    self.enter_context(mock.patch.object(sys, "unraisablehook"))
    logging.set_verbosity(logging.WARNING)
    with (
        self._open() as checkpoints,
        mock.patch.object(checkpoints._manager, "save", save),
        self.assertNoLogs("absl"),
        self.assertRaisesRegex(command_line.UsageError, "No space left"),
    ):
      hook = sys.unraisablehook
      checkpoints.save(_state(), _HISTORY)
    hook.assert_not_called()

  def test_saving_leaves_warnings_as_they_are(self):
    self.addCleanup(logging.set_verbosity, logging.get_verbosity())
    logging.set_verbosity(logging.WARNING)
    hook = sys.unraisablehook
    self._save(1)
    self.assertEqual(logging.get_verbosity(), logging.WARNING)
    self.assertIs(sys.unraisablehook, hook)

  def test_a_run_that_is_killed_while_it_saves_leaves_whole_checkpoints(self):
    self._save(1)
    process, pipe = self._start(_save_step_after_step)
    self.assertTrue(pipe.poll(120), "The process saves nothing.")
    deadline = time.monotonic() + 60
    is_unfinished = lambda path: "orbax-checkpoint-tmp" in path.name
    while not any(map(is_unfinished, self._directory.iterdir())):
      self.assertLess(time.monotonic(), deadline)
    process.kill()
    process.join(60)
    self.assertEqual(process.exitcode, -signal.SIGKILL)
    state = self._restored()
    self.assertGreaterEqual(state.step, 2)
    saved = _state(seed=state.step, step=state.step)
    jax.tree.map(np.testing.assert_array_equal, _arrays(state), _arrays(saved))
    self.assertFalse(any(map(is_unfinished, self._directory.iterdir())))

  def _start(self, function):
    """Another process that continues the run, and what it says."""
    context = multiprocessing.get_context("spawn")
    pipe, of_process = context.Pipe(duplex=False)
    process = context.Process(
        target=function, args=(self._directory, of_process), daemon=True
    )
    process.start()
    of_process.close()
    self.addCleanup(process.kill)
    return process, pipe

  def test_what_a_killed_run_left_is_removed(self):
    self._save(1)
    left = self._directory / "2.orbax-checkpoint-tmp"
    left.mkdir()
    (left / "array").write_bytes(b"half")
    with self._open(resume=True):
      self.assertFalse(left.exists())

  def test_an_interrupt_says_where_to_continue_if_it_is_possible(self):
    for step, notes in (
        (None, []),
        (1, [f"--resume continues from step 1 in {self._directory}"]),
    ):
      with self.assertRaises(KeyboardInterrupt) as caught:
        with self._open() as checkpoints:
          if step:
            checkpoints.save(_state(step=step), _HISTORY)
          raise KeyboardInterrupt
      self.assertEqual(getattr(caught.exception, "__notes__", []), notes)

  def test_what_an_interrupted_run_was_saving_is_removed(self):
    self._save(1)
    left = self._directory / "2.orbax-checkpoint-tmp"
    with self.assertRaises(KeyboardInterrupt):
      with self._open(resume=True):
        left.mkdir()
        raise KeyboardInterrupt
    self.assertFalse(left.exists())

  @parameterized.parameters(False, True)
  def test_two_runs_at_once_are_refused(self, resume):
    if resume:
      self._save(1)
    with self._open(resume=resume):
      with self.assertRaisesRegex(
          command_line.UsageError, "--out: another run is writing to /.*Wait"
      ):
        with self._open(resume=resume):
          pass
    with self._open(resume=resume):
      pass

  def test_refuses_a_directory_that_is_not_for_writing(self):
    self._save(1)
    with (
        mock.patch.object(os, "access", return_value=False),
        self.assertRaisesRegex(
            command_line.UsageError, "--out: .* is not for writing"
        ),
        self._open(resume=True),
    ):
      pass

  def test_refuses_a_directory_that_cannot_be_made(self):
    self._directory = pathlib.Path(self.create_tempfile().full_path, "sub")
    with self.assertRaisesRegex(
        command_line.UsageError, "--out: cannot make .*sub"
    ):
      self._open()


if __name__ == "__main__":
  absltest.main()
