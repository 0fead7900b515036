# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the benchmark at a size at which its numbers mean nothing."""

import pathlib

from absl.testing import absltest
from absl.testing import flagsaver

from benchmarks.convert_in_jit import convert_in_jit


class ConvertInJitTest(absltest.TestCase):

  def test_reports_every_case(self):
    output = self.create_tempfile().full_path
    with flagsaver.flagsaver(batch=32, repeats=1, output=output):
      convert_in_jit.main(["convert_in_jit"])
    report = pathlib.Path(output).read_text()
    self.assertEqual(report.count("\n| 20 |"), 6)
    self.assertEqual(report.count("\n| 1 |"), 1)


if __name__ == "__main__":
  absltest.main()
