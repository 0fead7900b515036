# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import json
import pathlib

from absl import app
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

  def test_workloads_that_there_are_not_leave_results_as_they_are(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    (directory / "RESULTS.md").write_text("found before")
    with flagsaver.flagsaver(
        workloads="criteo", reference="", output_dir=str(directory)
    ):
      with self.assertRaisesRegex(
          app.UsageError, r"(?s)'criteo' matches none of:.*\nCriteo, 8 x 4\n"
      ):
        preprocessing.main(["preprocessing"])
    self.assertEqual((directory / "RESULTS.md").read_text(), "found before")

  def test_names_the_script_if_there_is_no_reference(self):
    with flagsaver.flagsaver(reference="/nowhere"):
      with self.assertRaisesRegex(Exception, r"/nowhere.*install_reference.sh"):
        preprocessing.main(["preprocessing"])


if __name__ == "__main__":
  absltest.main()
