# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import json
import pathlib

from absl import app
from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks import machine
from benchmarks import turns
from benchmarks.lookup import cases
from benchmarks.lookup import lookup
from benchmarks.lookup import measure
from benchmarks.lookup import report


class LookupTest(absltest.TestCase):

  def test_cases_that_there_are_not_leave_results_as_they_are(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    (directory / "RESULTS.md").write_text("found before")
    with flagsaver.flagsaver(
        quick=True, cases="16384 x 20, zipf", output_dir=str(directory)
    ):
      with self.assertRaisesRegex(
          app.UsageError,
          r"(?s)x 20, zipf' matches none of:.*\n16384 x 20, Zipf 1.05, forward\n",
      ):
        lookup.main(["lookup"])
    self.assertEqual((directory / "RESULTS.md").read_text(), "found before")

  def test_a_part_does_not_take_the_place_of_other_results(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    (directory / "RESULTS.md").write_text("found before")
    for part in (dict(only=["dispatch"]), dict(cases="uniform, forward$")):
      with flagsaver.flagsaver(
          quick=True, rounds=2, output_dir=str(directory), **part
      ):
        with self.assertRaisesRegex(app.UsageError, "results of another run"):
          lookup.main(["lookup"])
    self.assertEqual((directory / "RESULTS.md").read_text(), "found before")

  def test_measures_everything_without_the_peers(self):
    directory = self.create_tempdir().full_path
    with flagsaver.flagsaver(
        quick=True,
        cases="16384 x 20, uniform",
        peers="/nowhere",
        rounds=2,
        output_dir=directory,
    ):
      lookup.main(["lookup"])
    text = pathlib.Path(directory, "RESULTS.md").read_text()
    results = json.loads(pathlib.Path(directory, "results.json").read_text())
    self.assertIn("Not measured: torch, tensorflow", text)
    self.assertNotIn("not measured", text)
    for heading in (
        "## Beside the peers on one CPU",
        "## Dispatch",
        "## Step time and table size",
        "## Compiling",
        "## Several devices",
    ):
      self.assertIn(heading, text)
    self.assertEqual(
        [(result["step"], result["num_cpus"]) for result in results],
        list(
            (step, num_cpus)
            for num_cpus in sorted({1, machine.num_cpus()})
            for step in cases.STEPS
        ),
    )
    for result in results:
      self.assertEqual(result["problems"], {})
      names = [
          "limit",
          "ours",
          "ours with conversion",
          "plain JAX",
          "JAX, scan",
      ]
      if result["step"] == cases.FORWARD:
        names.append("ours, from ids")
      else:
        names += ["ours, jax.Ref", "ours, two calls"]
      if result["step"] == cases.ADAGRAD:
        names.append("ours, row-wise")
      self.assertCountEqual(result["timings_ms"], names)

  def test_a_limit_that_is_beaten_is_none(self):
    def timing(*seconds):
      return turns.Timing(cpu=seconds, wall=seconds)

    result = measure.Result(
        case=cases.CASES[0],
        step=cases.ADAGRAD,
        num_cpus=1,
        timings={
            "limit": timing(1.0, 1.1, 1.2, 1.0),
            "ours": timing(0.9, 1.0, 1.1, 0.9),
            "torch": timing(2.0, 1.0, 2.0, 1.0),
            # It moves less memory.
            "FBGEMM": timing(0.1, 0.1, 0.1, 0.1),
        },
        problems={},
    )
    self.assertEqual(
        report.who_beat_the_limit([result]),
        "- ours in 16384 x 1, uniform, forward + Adagrad, one CPU\n",
    )


if __name__ == "__main__":
  absltest.main()
