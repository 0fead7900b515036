# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import pathlib

from absl import app
from absl.testing import absltest
from absl.testing import flagsaver
from jax_tpu_embedding.sparsecore.examples.dlrm import config as config_lib
from jax_tpu_embedding.sparsecore.lib.core import tcmalloc

from benchmarks.dlrm import cases
from benchmarks.dlrm import dlrm
from benchmarks.dlrm import model_worker
from benchmarks.dlrm import ours_worker


class DlrmTest(absltest.TestCase):

  def test_the_first_case_is_the_default_of_the_example(self):
    self.assertEqual(
        ours_worker.make_config(cases.CASES[0]), config_lib.Config()
    )

  def test_measures_all_cases_without_the_peer(self):
    directory = self.create_tempdir().full_path
    with flagsaver.flagsaver(
        quick=True, peers="/nowhere", rounds=2, output_dir=directory
    ):
      dlrm.main(["dlrm"])
    text = pathlib.Path(directory, "RESULTS.md").read_text()
    self.assertIn("PyTorch was not measured", text)
    for case in cases.CASES:
      self.assertIn(f"## {case.name}\n", text)
    for part in model_worker.PARTS:
      self.assertEqual(
          text.count(f"\n| ours | {part} | "),
          len(cases.CASES) * (1 if tcmalloc.library() is None else 2),
      )

  def test_an_earlier_version_that_is_not_there_is_an_error(self):
    with (
        flagsaver.flagsaver(before="/nowhere"),
        self.assertRaisesRegex(app.UsageError, "^--before=/nowhere has no"),
    ):
      dlrm.main(["dlrm"])


if __name__ == "__main__":
  absltest.main()
