# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program as its users see it; programs_test.py starts the others."""

from __future__ import annotations

import functools
import pathlib
import re
import signal
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.shakespeare import config as config_lib
from jax_tpu_embedding.sparsecore.examples.shakespeare import program
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare
from jax_tpu_embedding.sparsecore.examples.shakespeare import shakespeare_nnx
from jax_tpu_embedding.sparsecore.examples.shakespeare import small_run
from jax_tpu_embedding.sparsecore.examples.shakespeare import training

launch.provide_devices(1)
program_runs.compile_once()

_SMALL = (*small_run.ARGUMENTS, "--evaluate_every=10")


def _run(
    *arguments: str, trainer_type=shakespeare.LinenTrainer
) -> tuple[int, str, str]:
  """Runs the program in this process: exit code, stdout, stderr."""
  run = functools.partial(program.run, trainer_type=trainer_type)
  return program_runs.run(
      run, config_lib.Config, "shakespeare", *_SMALL, *arguments
  )


class ShakespeareTest(program_runs.ProgramTest):

  def test_a_run_shows_what_it_promises(self):
    output_dir = self.directory()
    code, stdout, stderr = _run("--num_steps=200", f"--output_dir={output_dir}")
    self.assertEqual((code, stderr), (0, ""))
    self.assertIn("Text: as_you_like_it.txt, 30,", stdout)
    self.assertRegex(stdout, r"trained 6,400/6,400 words, [\d,]+/s: loss .*\n")
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
    straight, parts = self.directory(), self.directory()
    _run("--num_steps=40", f"--output_dir={straight}")
    _run("--num_steps=20", f"--output_dir={parts}")
    code, stdout, _ = _run(
        "--num_steps=40", f"--output_dir={parts}", "--resume"
    )
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 20", stdout)
    self.assertIn("Trained on 640 words", stdout)
    self.assert_same_checkpoint(straight, parts, 40)
    saved = program_runs.saved_arrays(straight, 40)
    self.assertEqual(set(saved["tables"]), {"words", "pairs"})

  def test_an_interrupted_run_continues_bit_for_bit(self):
    straight, parts = self.directory(), self.directory()
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
        "shakespeare: interrupted; --resume continues from step 15 in"
        f" {parts}/checkpoints.\n",
    )
    code, stdout, _ = _run(*arguments, "--resume")
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 15", stdout)
    self.assert_same_checkpoint(straight, parts, 20)

  def test_a_killed_run_continues_bit_for_bit(self):
    straight, parts = self.directory(), self.directory()
    process = program_runs.start(
        shakespeare.__file__,
        *_SMALL,
        "--num_steps=1000000",
        "--checkpoint_every=5",
        f"--output_dir={parts}",
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
    self.assert_same_checkpoint(straight, parts, newest + 5)

  @parameterized.parameters(
      # The loss is a number, and its exponential is none.
      ("--dense_learning_rate=300", r"(inf|\d\.\de\+\d+)", True),
      ("--dense_learning_rate=1e30", "nan", False),
  )
  def test_a_run_that_diverges_says_so(self, argument, perplexity, has_text):
    output_dir = self.directory()
    code, stdout, stderr = _run(
        "--num_steps=20", f"--output_dir={output_dir}", argument
    )
    self.assertEqual((code, stderr), (0, ""))
    self.assertRegex(
        stdout, rf"\ntrained 640.*, held-out perplexity {perplexity}\n"
    )
    self.assertRegex(
        stdout,
        rf"\nHeld-out perplexity: {perplexity} \(unigram baseline: [\d.]+\)\n"
        r"Training diverged: .* Lower --dense_learning_rate or"
        r" --learning_rate\.\n",
    )
    self.assertEqual("\n\nNo text: " not in stdout, has_text)
    self.assertTrue(pathlib.Path(output_dir, "loss_curve.png").is_file())
    self.assertTrue(pathlib.Path(output_dir, "checkpoints", "20").is_dir())

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
      ("--output_dir=/dev/null/x", 1, "--output_dir: cannot make /dev/null/x"),
      ("--checkpoint_dir=/dev/null", 1, "--checkpoint_dir: cannot make /dev/n"),
      ("--resume", 1, "--resume needs the --output_dir or the --checkpoint_d"),
  )
  def test_an_error_is_one_line(self, argument, expected_code, message):
    code, stdout, stderr = _run(argument)
    self.assertEqual((code, stdout), (expected_code, ""))
    self.assert_is_one_line(stderr, "shakespeare", re.escape(message))

  def test_layers_that_do_not_fit_are_one_line(self):
    code, _, stderr = _run("--hidden_dim=1000000000000")
    self.assertEqual(code, 1)
    self.assert_is_one_line(
        stderr, "shakespeare", r"need .*TiB .*free.*--hidden_dim=1000000000000,"
    )

  def test_other_settings_than_the_checkpoint_are_one_line(self):
    output_dir = f"--output_dir={self.directory()}"
    _run("--num_steps=1", output_dir)
    text = self.create_tempfile(content="to be or not to be " * 100).full_path
    for argument, message in (
        ("--hidden_dim=8", "hidden_dim is 8, was 16"),
        (f"--text_file={text}", r"text is \w{64}, was \w{64}"),
    ):
      with self.subTest(argument):
        code, _, stderr = _run(output_dir, "--resume", argument)
        self.assertEqual(code, 1)
        self.assert_is_one_line(
            stderr, "shakespeare", rf"settings: {message}\.$"
        )

  def test_another_program_continues_a_run(self):
    output_dir = f"--output_dir={self.directory()}"
    _run("--num_steps=10", output_dir)
    code, stdout, _ = _run(
        "--num_steps=20",
        output_dir,
        "--resume",
        trainer_type=shakespeare_nnx.NnxTrainer,
    )
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 10", stdout)
    self.assertIn("Trained on 320 words", stdout)

  def test_the_process_itself_ends_with_the_line_and_the_code(self):
    process = program_runs.start(shakespeare.__file__, "--num_step=5")
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stdout), (2, ""))
    self.assert_is_one_line(stderr, "shakespeare", "Unknown command line flag")

  def test_help_lists_every_flag(self):
    self.assert_help_lists_every_flag(
        shakespeare.__package__, config_lib.Config
    )


if __name__ == "__main__":
  command_line.define_flags(config_lib.Config)
  absltest.main()
