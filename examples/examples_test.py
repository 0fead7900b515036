# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Runs the example programs as they stand; they check their own results."""

import os
import pathlib
import subprocess

from absl.testing import absltest
from absl.testing import parameterized


class ExamplesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("quick_start", r"loss .* -> .*; \d+ rows of the table were updated"),
      ("stacking", r"\{'users_items': \(192, 16\)\}"),
  )
  def test_runs_and_reports(self, name, expected):
    program = pathlib.Path(__file__).parent / name
    result = subprocess.run(
        [program],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertRegex(result.stdout, expected)


if __name__ == "__main__":
  absltest.main()
