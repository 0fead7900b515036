# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks.lookup import cases
from benchmarks.lookup import lookup


class LookupTest(absltest.TestCase):

  def test_measures_everything_without_the_peers(self):
    directory = self.create_tempdir().full_path
    with flagsaver.flagsaver(
        quick=True,
        cases="16384 x 20",
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
        "## Beside the peers",
        "## Dispatch",
        "## Step time and table size",
        "## Compiling",
        "## Several devices",
    ):
      self.assertIn(heading, text)
    self.assertLen(results, 2 * len(cases.STEPS))
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


if __name__ == "__main__":
  absltest.main()
