# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks.preprocessing import preprocessing
from benchmarks.preprocessing import workloads


class PreprocessingTest(absltest.TestCase):

  def test_measures_every_workload(self):
    directory = self.create_tempdir().full_path
    with flagsaver.flagsaver(
        quick=True, reference="", rounds=2, output_dir=directory
    ):
      preprocessing.main(["preprocessing"])
    text = pathlib.Path(directory, "RESULTS.md").read_text()
    data = json.loads(pathlib.Path(directory, "results.json").read_text())
    for workload in workloads.WORKLOADS:
      with self.subTest(workload.name):
        num_rows = 1 + workload.can_have_weights
        # In the tables of CPU time and of wall time, and some in a third.
        self.assertGreaterEqual(
            text.count(f"\n| {workload.name} |"), 2 * num_rows
        )
    for result in data["results"]:
      self.assertIsNone(result["problem"])
      self.assertIn("ours", result["timings"])
      self.assertIn("floor, new memory", result["timings"])

  def test_names_the_script_if_there_is_no_reference(self):
    with flagsaver.flagsaver(reference="/nowhere"):
      with self.assertRaisesRegex(Exception, r"/nowhere.*install_reference.sh"):
        preprocessing.main(["preprocessing"])


if __name__ == "__main__":
  absltest.main()
