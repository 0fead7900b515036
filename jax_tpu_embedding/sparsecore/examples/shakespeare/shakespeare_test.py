# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program as its users see it; programs_test.py starts the others."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import jax
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare
from jax_tpu_embedding.sparsecore.examples.shakespeare import training
import numpy as np
import orbax.checkpoint as ocp

_SMALL = (
    "--batch_size=32",
    "--vocabulary_size=200",
    "--embedding_dim=8",
    "--pair_table_rows=512",
    "--hidden_dim=16",
    "--dropout=0.1",
    "--dense_learning_rate=0.01",
    "--evaluate_every=10",
    "--generated_words=30",
)


def _run(*arguments: str) -> tuple[int, str, str]:
  """Runs the program in this process: exit code, stdout, stderr."""
  stdout, stderr = io.StringIO(), io.StringIO()
  code = 0
  with (
      flagsaver.flagsaver(),
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(stderr),
  ):
    try:
      program.main(
          program.parse_flags(["shakespeare", *_SMALL, *arguments]),
          shakespeare.LinenTrainer,
      )
    except SystemExit as error:
      code = error.code
  return code, stdout.getvalue(), stderr.getvalue()


def _start(*arguments: str) -> subprocess.Popen[str]:
  """Starts the program in a process of its own."""
  return subprocess.Popen(
      [sys.executable, shakespeare.__file__, *_SMALL, *arguments],
      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )


def _checkpoint(output_dir: str, step: int) -> Any:
  """All arrays of a checkpoint, read without this program's help."""
  path = pathlib.Path(output_dir, "checkpoints", str(step), "state")
  return ocp.StandardCheckpointer().restore(path)


class ShakespeareTest(parameterized.TestCase):

  def _directory(self) -> str:
    return self.create_tempdir().full_path

  def _assert_same_checkpoint(self, one: str, other: str, step: int) -> None:
    expected = _checkpoint(one, step)
    self.assertEqual(set(expected), {"dense", "optimizer_state", "tables"})
    self.assertEqual(set(expected["tables"]), {"words", "pairs"})
    for variables in expected["tables"].values():
      self.assertEqual(set(variables), {"table", "slot"})
      self.assertNotEmpty(jax.tree.leaves(variables["slot"]))
    jax.tree.map(
        np.testing.assert_array_equal, expected, _checkpoint(other, step)
    )

  def test_a_run_shows_what_it_promises(self):
    output_dir = self._directory()
    code, stdout, stderr = _run("--num_steps=200", f"--output_dir={output_dir}")
    self.assertEqual((code, stderr), (0, ""))
    self.assertIn("Text: as_you_like_it.txt, 30,", stdout)
    self.assertRegex(stdout, r"step 200/200: loss .* [\d,]+ words/s\n")
    perplexity, unigram = re.search(
        r"\nHeld-out perplexity: ([\d.]+) \(unigram baseline: ([\d.]+)\)\n",
        stdout,
    ).groups()
    self.assertLess(float(perplexity), 0.9 * float(unigram))
    generated = stdout.split("\n\n", 1)[1].split("\n\nCheckpoint:")[0]
    self.assertGreater(len(generated.split()), 10)
    self.assertTrue(pathlib.Path(output_dir, "loss_curve.png").is_file())
    self.assertIn(f"Checkpoint: {output_dir}/checkpoints\n", stdout)
    self.assertIn(f"Loss curve: {output_dir}/loss_curve.png\n", stdout)

  def test_a_run_in_two_parts_is_the_run_in_one_bit_for_bit(self):
    straight, parts = self._directory(), self._directory()
    _run("--num_steps=40", f"--output_dir={straight}")
    _run("--num_steps=20", f"--output_dir={parts}")
    code, stdout, _ = _run(
        "--num_steps=40", f"--output_dir={parts}", "--resume"
    )
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 20", stdout)
    self.assertIn("Trained 20 steps", stdout)
    self._assert_same_checkpoint(straight, parts, 40)

  def test_an_interrupted_run_continues_bit_for_bit(self):
    straight, parts = self._directory(), self._directory()
    _run("--num_steps=20", f"--output_dir={straight}")
    train_step = training.Trainer.train_step

    def interrupted_at_17(trainer, state):
      if state.step == 17:
        raise KeyboardInterrupt
      return train_step(trainer, state)

    arguments = (
        "--num_steps=20",
        "--checkpoint_every=5",
        f"--output_dir={parts}",
    )
    with mock.patch.object(training.Trainer, "train_step", interrupted_at_17):
      code, _, stderr = _run(*arguments)
    self.assertEqual(code, 130)
    self.assertEqual(
        stderr,
        "shakespeare: interrupted; --resume continues from the last"
        " checkpoint.\n",
    )
    code, stdout, _ = _run(*arguments, "--resume")
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 15", stdout)
    self._assert_same_checkpoint(straight, parts, 20)

  def test_a_killed_run_continues_bit_for_bit(self):
    straight, parts = self._directory(), self._directory()
    process = _start(
        "--num_steps=1000000", "--checkpoint_every=5", f"--output_dir={parts}"
    )
    checkpoints = pathlib.Path(parts, "checkpoints")
    deadline = time.monotonic() + 120
    while not any(checkpoints.glob("[1-9]*[05]")):
      self.assertLess(time.monotonic(), deadline)
      self.assertIsNone(process.poll(), process.stderr)
      time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    self.assertEqual(process.returncode, -signal.SIGTERM)

    newest = max(
        int(path.name) for path in checkpoints.iterdir() if path.name.isdigit()
    )
    num_steps = f"--num_steps={newest + 5}"
    code, stdout, _ = _run(num_steps, f"--output_dir={parts}", "--resume")
    self.assertEqual(code, 0)
    self.assertIn(f"Resumed at step {newest}", stdout)
    _run(num_steps, f"--output_dir={straight}")
    self._assert_same_checkpoint(straight, parts, newest + 5)

  @parameterized.parameters(
      ("--num_step=5", 2, "Unknown command line flag 'num_step'. Did you mean"),
      ("--num_steps=five", 2, "--num_steps=five: invalid literal"),
      ("--resume=maybe", 2, "--resume=maybe"),
      ("resume", 2, "unexpected argument 'resume'; flags start with --"),
      ("--text_file=/no/such/file", 1, "there is no file /no/such/file"),
      ("--text_file=/dev/null", 1, "/dev/null is empty"),
      ("--vocabulary_size=4", 1, "vocabulary_size must be at least 16, got 4"),
      ("--num_devices=3", 1, "must be a multiple of --num_devices=3"),
      ("--num_devices=8", 1, "is 8, but JAX has 1 cpu devices"),
      ("--output_dir=/dev/null/x", 1, "cannot make /dev/null/x"),
      ("--resume", 1, "--resume needs the --output_dir or the --checkpoint_d"),
  )
  def test_an_error_is_one_line(self, argument, expected_code, message):
    code, stdout, stderr = _run(argument)
    self.assertEqual((code, stdout), (expected_code, ""))
    self.assertRegex(stderr, r"\Ashakespeare: [^\n]*\n\Z")
    self.assertIn(message, stderr)

  def test_other_settings_than_the_checkpoint_are_one_line(self):
    output_dir = f"--output_dir={self._directory()}"
    _run("--num_steps=1", output_dir)
    code, _, stderr = _run(
        "--num_steps=2", output_dir, "--hidden_dim=8", "--resume"
    )
    self.assertEqual(code, 1)
    self.assertRegex(stderr, r"\Ashakespeare: .*hidden_dim is 8, was 16.*\n\Z")

  def test_the_process_itself_ends_with_the_line_and_the_code(self):
    process = _start("--num_step=5")
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stdout), (2, ""))
    self.assertRegex(stderr, r"\Ashakespeare: Unknown command line flag.*\n\Z")

  def test_help_lists_every_flag(self):
    process = _start("--help")
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (0, ""))
    for name in config_lib.Config.__dataclass_fields__:
      self.assertRegex(stdout, rf"--(\[no\])?{name}: [A-Z]")


if __name__ == "__main__":
  config_lib.define_flags()
  absltest.main()
