# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Every program, started as a process on four devices of its own making."""

from __future__ import annotations

import pathlib
import sys

from absl.testing import absltest
from absl.testing import parameterized
from jax_tpu_embedding.sparsecore.examples.common import program_runs
from jax_tpu_embedding.sparsecore.examples.shakespeare import small_run
from jax_tpu_embedding.sparsecore.examples.shakespeare import trainers

program_runs.compile_once()


def _file(api: str) -> str:
  """The program of `api`."""
  return sys.modules[trainers.TRAINERS[api].__module__].__file__


class ProgramsTest(parameterized.TestCase):

  @parameterized.parameters(*trainers.TRAINERS)
  def test_trains_on_four_devices(self, api):
    output_dir = self.create_tempdir().full_path
    process = program_runs.start(
        _file(api),
        *small_run.ARGUMENTS,
        "--num_steps=20",
        "--num_devices=4",
        f"--output_dir={output_dir}",
    )
    stdout, stderr = process.communicate()
    self.assertEqual((process.returncode, stderr), (0, ""))
    self.assertRegex(stdout, r"Trained on 640 words in .*/s\n")
    # The same for all; agreement_test.py compares more digits.
    self.assertIn("\nHeld-out perplexity: 43.8 (unigram", stdout)
    self.assertTrue(pathlib.Path(output_dir, "loss_curve.png").is_file())

  def test_an_error_begins_with_the_name_of_the_program(self):
    processes = {
        api: program_runs.start(_file(api), "--num_step=5")
        for api in trainers.TRAINERS
    }
    for api, process in processes.items():
      with self.subTest(api):
        stdout, stderr = process.communicate()
        self.assertEqual((process.returncode, stdout), (2, ""))
        self.assertStartsWith(
            stderr, f"{pathlib.Path(_file(api)).stem}: Unknown command line"
        )


if __name__ == "__main__":
  absltest.main()
