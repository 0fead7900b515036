# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import pathlib

from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks.update_scaling import update_scaling


class UpdateScalingTest(absltest.TestCase):

  def test_reports_every_rule_and_size(self):
    output = self.create_tempfile().full_path
    with flagsaver.flagsaver(
        rows=["1024", "2048"],
        rules=["sgd", "adam"],
        batch=32,
        valency=2,
        repeats=3,
        output=output,
    ):
      update_scaling.main(["update_scaling"])
    report = pathlib.Path(output).read_text()
    for rule in ("sgd", "adam"):
      # Two sizes with the same ids, one with ids from the whole table.
      self.assertEqual(report.count(f"\n| {rule} |"), 3)


if __name__ == "__main__":
  absltest.main()
