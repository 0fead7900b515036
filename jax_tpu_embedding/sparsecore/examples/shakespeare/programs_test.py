# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every program, started as a process on four devices of its own making."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.shakespeare import trainers

_SMALL = (
    "--batch_size=32",
    "--vocabulary_size=200",
    "--embedding_dim=8",
    "--pair_table_rows=512",
    "--hidden_dim=16",
    "--dropout=0.1",
    "--dense_learning_rate=0.01",
    "--generated_words=5",
)


class ProgramsTest(parameterized.TestCase):

  def _run(self, api: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    self._file = sys.modules[trainers.TRAINERS[api].__module__].__file__
    return subprocess.run(
        [sys.executable, self._file, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

  @parameterized.parameters(*trainers.TRAINERS)
  def test_trains_on_four_devices(self, api):
    output_dir = self.create_tempdir().full_path
    result = self._run(
        api,
        *_SMALL,
        "--num_steps=20",
        "--num_devices=4",
        f"--output_dir={output_dir}",
    )
    self.assertEqual((result.returncode, result.stderr), (0, ""))
    self.assertRegex(result.stdout, r"Trained 20 steps in .* words/s\n")
    # The same for all; agreement_test.py compares more digits.
    self.assertIn("\nHeld-out perplexity: 43.8 (unigram", result.stdout)
    self.assertTrue(pathlib.Path(output_dir, "loss_curve.png").is_file())

  @parameterized.parameters(*trainers.TRAINERS)
  def test_an_error_begins_with_the_name_of_the_program(self, api):
    result = self._run(api, "--num_step=5")
    self.assertEqual((result.returncode, result.stdout), (2, ""))
    self.assertStartsWith(
        result.stderr, f"{pathlib.Path(self._file).stem}: Unknown command line"
    )


if __name__ == "__main__":
  absltest.main()
