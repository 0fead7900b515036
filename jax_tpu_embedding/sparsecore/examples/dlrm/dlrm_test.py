# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The program as its users see it."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import signal
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import command_line
from jax_tpu_embedding.sparsecore.examples.common import launch
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.examples.dlrm import dlrm
from jax_tpu_embedding.sparsecore.examples.dlrm import small_run
from jax_tpu_embedding.sparsecore.examples.dlrm import training

launch.provide_devices(4)
program_runs.compile_once()


def _run(*arguments: str) -> tuple[int, str, str]:
  """Runs the program in this process: exit code, stdout, stderr."""
  return program_runs.run(
      dlrm.run, config_lib.Config, "dlrm", *small_run.FLAGS, *arguments
  )


class DlrmTest(program_runs.ProgramTest):

  @parameterized.parameters(1, 4)
  def test_a_run_shows_what_it_promises(self, num_devices):
    output_dir = self.directory()
    code, stdout, stderr = _run(
        f"--output_dir={output_dir}", f"--num_devices={num_devices}"
    )
    self.assertEqual((code, stderr), (0, ""))
    self.assertRegex(
        stdout,
        r"(?s)\Agenerated 1,300/1,300 samples, [\d,]+/s\n"
        rf"Log: {output_dir}/clicks.tsv, 1,000 samples to .*, 300 held out.\n"
        r"Tables: 26 of 50 rows x 8, on "
        rf"{num_devices} device.*"
        r"trained 1,000/1,000 samples, [\d,]+/s: held-out AUC 0\.\d+, .*\n"
        r"Trained on 1,000 samples in [\d.]+ s, [\d,]+/s\n"
        r"Held-out AUC 0\.\d{4}, log loss 0\.\d{4}\n"
        r"Logistic regression on the 13 dense features: AUC 0\.\d{4}, .*\n"
        rf"Checkpoint: {output_dir}/checkpoints\n"
        rf"Picture: {output_dir}/training.png\n\Z",
    )
    self.assertTrue(pathlib.Path(output_dir, "training.png").is_file())
    lines = pathlib.Path(output_dir, "clicks.tsv").read_bytes().splitlines()
    self.assertLen(lines, 1300)

  def test_the_model_is_better_than_logistic_regression(self):
    code, stdout, _ = _run(
        f"--output_dir={self.directory()}",
        "--num_samples=120000",
        "--heldout_samples=20000",
        "--batch_size=500",
        "--table_rows=2000",
        "--dense_learning_rate=0.003",
        "--evaluate_every=1000",
    )
    self.assertEqual(code, 0)
    model, baseline = map(
        float, re.findall(r"AUC (0\.\d{4}), log", stdout)[-2:]
    )
    self.assertGreater(model, baseline + 0.02)
    self.assertGreater(baseline, 0.6)

  def test_a_log_of_the_user_gives_the_same_run_as_the_generated_one(self):
    generated, plain, packed = (self.directory() for _ in range(3))
    _run(f"--output_dir={generated}")
    log = pathlib.Path(generated, "clicks.tsv")
    packed_log = pathlib.Path(packed, "day_0.gz")
    packed_log.write_bytes(gzip.compress(log.read_bytes()))
    for data, output_dir in ((log, plain), (packed_log, packed)):
      code, stdout, _ = _run(f"--data={data}", f"--output_dir={output_dir}")
      self.assertEqual(code, 0)
      self.assertStartsWith(stdout, f"Log: {data}, 1,000 samples")
      self.assert_same_checkpoint(generated, output_dir, 10)
      self.assertFalse(pathlib.Path(output_dir, "clicks.tsv").exists())

  @parameterized.parameters(1, 4)
  def test_a_run_in_two_parts_is_the_run_in_one_bit_for_bit(self, num_devices):
    straight, parts = self.directory(), self.directory()
    devices = f"--num_devices={num_devices}"
    # More than one pass over the ten batches.
    _run("--num_steps=13", f"--output_dir={straight}", devices)
    _run("--num_steps=7", f"--output_dir={parts}", devices)
    code, stdout, _ = _run(
        "--num_steps=13", f"--output_dir={parts}", devices, "--resume"
    )
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 7", stdout)
    self.assertNotIn("generated", stdout)
    self.assertIn("Trained on 600 samples", stdout)
    self.assert_same_checkpoint(straight, parts, 13)

  def test_an_interrupted_run_continues_bit_for_bit(self):
    straight, parts = self.directory(), self.directory()
    _run(f"--output_dir={straight}")
    train_step = training.Trainer.train_step

    def interrupted_at_7(trainer, state, batch):
      if state.step == 7:
        raise KeyboardInterrupt
      return train_step(trainer, state, batch)

    arguments = ("--checkpoint_every=3", f"--output_dir={parts}")
    with mock.patch.object(training.Trainer, "train_step", interrupted_at_7):
      code, _, stderr = _run(*arguments)
    self.assertEqual(code, 130)
    self.assertEqual(
        stderr,
        "dlrm: interrupted; --resume continues from step 6 in"
        f" {parts}/checkpoints.\n",
    )
    pathlib.Path(parts, "clicks.tsv").unlink()  # It is made again.
    code, stdout, _ = _run(*arguments, "--resume")
    self.assertEqual(code, 0)
    self.assertIn("Resumed at step 6", stdout)
    self.assert_same_checkpoint(straight, parts, 10)

  def test_a_run_is_resumed_on_other_devices(self):
    output_dir = f"--output_dir={self.directory()}"
    _run(output_dir, "--num_steps=4")
    code, stdout, stderr = _run(output_dir, "--num_devices=4", "--resume")
    self.assertEqual((code, stderr), (0, ""))
    self.assertIn("Resumed at step 4", stdout)
    self.assertIn("Trained on 600 samples", stdout)

  def test_a_malformed_line_to_learn_from_is_one_line(self):
    output_dir = self.directory()
    _run(f"--output_dir={output_dir}", "--num_steps=1")
    log = pathlib.Path(output_dir, "clicks.tsv")
    lines = log.read_bytes().splitlines(keepends=True)
    lines[400] = b"no\n"
    log.write_bytes(b"".join(lines))
    code, _, stderr = _run(f"--data={log}", f"--output_dir={self.directory()}")
    self.assertEqual(code, 1)
    self.assertEqual(
        stderr,
        f"dlrm: {log}:401: expected 40 columns separated by tabs, found 1.\n",
    )

  def test_a_run_that_diverges_says_so(self):
    code, stdout, _ = _run("--num_steps=4", "--learning_rate=1e30")
    self.assertEqual(code, 0)
    self.assertIn("Training diverged: the held-out log loss is no", stdout)

  def test_a_full_disk_while_the_log_is_made_is_one_line(self):
    output_dir = pathlib.Path(self.directory())
    partial = output_dir / "partial_clicks.tsv"
    partial.symlink_to("/dev/full")
    code, _, stderr = _run(f"--output_dir={output_dir}")
    self.assertEqual(code, 1)
    self.assertEqual(
        stderr,
        f"dlrm: --output_dir: cannot write {output_dir}/clicks.tsv: No space"
        " left on device.\n",
    )
    self.assertFalse(partial.is_symlink())
    self.assertFalse((output_dir / "clicks.tsv").exists())

  @parameterized.parameters(
      ("--num_step=5", 2, "Unknown command line flag 'num_step'. Did you mean"),
      ("--num_steps=five", 2, "--num_steps=five: invalid literal"),
      ("--top_mlp=8,x", 1, "--top_mlp must be whole numbers separated by comm"),
      ("--data=/no/such/file", 1, "--data: there is no file /no/such/file"),
      ("--data=/dev/null", 1, "--data: /dev/null gives 0 samples"),
      ("--num_devices=5", 1, "--num_devices is 5, but JAX has 4 cpu devices."),
      ("--output_dir=/dev/null/x", 1, "--output_dir: cannot make /dev/null/x"),
      ("--resume", 1, "--resume needs the --output_dir"),
  )
  def test_an_error_is_one_line(self, argument, expected_code, message):
    code, stdout, stderr = _run(argument)
    self.assertEqual((code, stdout), (expected_code, ""))
    self.assert_is_one_line(stderr, "dlrm", re.escape(message))

  def test_an_output_that_nobody_reads_ends_a_run_with_a_line(self):
    process = program_runs.start(
        "-m",
        dlrm.__package__,
        *small_run.FLAGS,
        f"--output_dir={self.directory()}",
    )
    process.stdout.close()
    stderr = process.stderr.read()
    self.assertEqual(process.wait(), 1)
    self.assert_is_one_line(stderr, "dlrm", "nobody reads its output")

  def test_an_interrupt_while_modules_are_imported_is_no_traceback(self):
    process = program_runs.start("-m", dlrm.__package__)
    while "numpy" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
      self.assertIsNone(process.poll())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (-signal.SIGINT, ""))

  @parameterized.parameters(
      "--bottom_mlp=8,1000000000000", "--cross_layers=1000000000000"
  )
  def test_layers_that_do_not_fit_are_one_line(self, flag):
    code, stdout, stderr = _run(flag)
    self.assertEqual((code, stdout), (1, ""))  # before a log is made
    self.assert_is_one_line(stderr, "dlrm", rf"need .*TiB .*free.*{flag}, --")

  def test_a_mistake_leaves_no_directory(self):
    parent = self.directory()
    with mock.patch.object(tempfile, "tempdir", parent):
      code, _, _ = _run("--data=/no/such/file")
    self.assertEqual((code, os.listdir(parent)), (1, []))

  def test_other_settings_than_the_checkpoint_are_one_line(self):
    output_dir = self.directory()
    _run("--num_steps=1", f"--output_dir={output_dir}")
    log = pathlib.Path(output_dir, "clicks.tsv")
    lines = log.read_bytes()
    log.write_bytes((b"1" if lines[:1] == b"0" else b"0") + lines[1:])
    for argument, message in (
        ("--top_mlp=4,4", r"top_mlp is \[4, 4\], was \[8\]"),
        ("--num_steps=2", r"log_sha256 is \w{64}, was \w{64}"),
    ):
      with self.subTest(argument):
        code, _, stderr = _run(
            f"--output_dir={output_dir}", "--resume", argument
        )
        self.assertEqual(code, 1)
        self.assert_is_one_line(stderr, "dlrm", rf"settings: {message}\.$")

  def test_help_lists_every_flag(self):
    self.assert_help_lists_every_flag(dlrm.__package__, config_lib.Config)


if __name__ == "__main__":
  command_line.define_flags(config_lib.Config)
  absltest.main()
